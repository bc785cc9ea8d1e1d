//! TLS by rustls: what a port shows and asks of its clients, read again when the files change; and what a client of ours trusts
//! and shows.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
};

use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::WebPkiClientVerifier,
};

use crate::follow::{Follow, Seen, follow};

/// Of a file of certificates, or of a key.
const BYTES_MAX: u64 = 4 << 20;

/// Files of a port's TLS; nothing: it speaks in the clear.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TlsSettings {
    /// Its certificate and those between it and the authority, PEM.
    pub cert: Option<PathBuf>,
    /// The certificate's private key, PEM.
    pub key: Option<PathBuf>,
    /// Authorities, PEM: a client must show a certificate of one of them.
    pub client_ca: Option<PathBuf>,
}

/// Files of a client's TLS.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClientTls {
    /// Authorities that are trusted, PEM; unset: those of the system.
    pub ca: Option<PathBuf>,
    /// What is shown to servers that ask, PEM.
    pub cert: Option<PathBuf>,
    /// Its private key, PEM.
    pub key: Option<PathBuf>,
}

/// TLS that cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// Of two files that need each other one is given.
    #[error("{0}")]
    Settings(&'static str),
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// Its path.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A file has not what it should have. What it has instead is not told: it may be a key.
    #[error("{}: {reason}", path.display())]
    Content {
        /// Its path.
        path: PathBuf,
        /// What is missing.
        reason: String,
    },
    /// Certificate and key, each read, do not go together.
    #[error("{} with its key: {reason}", path.display())]
    Pair {
        /// The certificate's path.
        path: PathBuf,
        /// The library's reason.
        reason: String,
    },
}

impl TlsSettings {
    /// Whether the port speaks TLS.
    pub fn is_on(&self) -> bool {
        self.cert.is_some()
    }

    /// Whether clients must show a certificate.
    pub fn wants_certificates(&self) -> bool {
        self.client_ca.is_some()
    }

    /// Whether the files that need each other are all named.
    ///
    /// # Errors
    /// [`TlsError::Settings`].
    pub fn check(&self) -> Result<(), TlsError> {
        match (&self.cert, &self.key, &self.client_ca) {
            (Some(_), None, _) => Err(TlsError::Settings("tls_cert: needs tls_key (--tls-key) beside it")),
            (None, Some(_), _) => Err(TlsError::Settings("tls_key: needs tls_cert (--tls-cert) beside it")),
            (None, None, Some(_)) => Err(TlsError::Settings(
                "tls_client_ca: needs tls_cert and tls_key: only TLS asks for certificates",
            )),
            _ => Ok(()),
        }
    }

    /// Whether the files are there and go together.
    ///
    /// # Errors
    /// [`TlsError`], with the file.
    pub fn check_files(&self) -> Result<(), TlsError> {
        self.read(&[]).map(drop)
    }

    fn files(&self) -> Vec<PathBuf> {
        [&self.cert, &self.key, &self.client_ca].into_iter().flatten().cloned().collect()
    }

    /// What the files say; `protocols` is what is spoken inside, best first.
    fn read(&self, protocols: &[&[u8]]) -> Result<Option<ServerConfig>, TlsError> {
        self.check()?;
        let (Some(cert), Some(key)) = (&self.cert, &self.key) else { return Ok(None) };
        let builder = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError::Pair { path: cert.clone(), reason: error.to_string() })?;
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(ca) => {
                let roots = Arc::new(roots(ca)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider()).build();
                builder.with_client_cert_verifier(
                    verifier
                        .map_err(|error| TlsError::Content { path: ca.clone(), reason: error.to_string() })?,
                )
            }
        };
        let pair = |error: rustls::Error| TlsError::Pair { path: cert.clone(), reason: error.to_string() };
        let mut config = builder.with_single_cert(certificates(cert)?, private_key(key)?).map_err(pair)?;
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        Ok(Some(config))
    }
}

/// A port's TLS, as its files say it now.
#[derive(Debug)]
pub struct ServerTls {
    settings: TlsSettings,
    protocols: &'static [&'static [u8]],
    config: RwLock<Arc<ServerConfig>>,
}

impl ServerTls {
    /// Reads the files, now and whenever they change; None where there are none. To be called in an asynchronous runtime.
    /// `protocols` is what is spoken inside, best first.
    ///
    /// # Errors
    /// [`TlsError`], with the file.
    pub fn open(
        settings: TlsSettings,
        protocols: &'static [&'static [u8]],
    ) -> Result<Option<Arc<ServerTls>>, TlsError> {
        let seen = Seen::of(&settings.files());
        let Some(config) = settings.read(protocols)? else { return Ok(None) };
        let tls = Arc::new(ServerTls { settings, protocols, config: RwLock::new(Arc::new(config)) });
        follow(&tls, seen);
        Ok(Some(tls))
    }

    /// Reads the files again; the log says what came of it.
    pub fn reload(&self) {
        self.changed();
    }

    /// What the next connection is met with.
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Follow for ServerTls {
    fn files(&self) -> Vec<PathBuf> {
        self.settings.files()
    }

    fn changed(&self) {
        match self.settings.read(self.protocols) {
            Ok(Some(config)) => {
                *self.config.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
                tracing::info!("the certificates were read again");
            }
            Ok(None) => {}
            Err(error) => {
                tracing::error!(%error, "the certificates could not be read again; they stay what they were");
            }
        }
    }
}

impl ClientTls {
    /// What connections are made with; the files are read again for each.
    ///
    /// # Errors
    /// [`TlsError`], with the file.
    pub fn config(&self, protocols: &[&[u8]]) -> Result<Arc<ClientConfig>, TlsError> {
        let (trusted, path) = match &self.ca {
            Some(ca) => (roots(ca)?, ca.clone()),
            None => (system_roots()?, PathBuf::from("the system's authorities")),
        };
        let failed = |error: rustls::Error| TlsError::Pair { path: path.clone(), reason: error.to_string() };
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(failed)?
            .with_root_certificates(trusted);
        let mut config = match (&self.cert, &self.key) {
            (None, None) => builder.with_no_client_auth(),
            (Some(cert), Some(key)) => {
                let pair =
                    |error: rustls::Error| TlsError::Pair { path: cert.clone(), reason: error.to_string() };
                builder.with_client_auth_cert(certificates(cert)?, private_key(key)?).map_err(pair)?
            }
            _ => return Err(TlsError::Settings("a client's certificate and its key: one needs the other")),
        };
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        Ok(Arc::new(config))
    }
}

pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn bytes(path: &Path) -> Result<Vec<u8>, TlsError> {
    use io::Read as _;
    let failed = |source| TlsError::Io { path: path.to_owned(), source };
    let file = std::fs::File::open(path).map_err(failed)?;
    let content = |reason: &str| TlsError::Content { path: path.to_owned(), reason: reason.to_owned() };
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(content("is not a file"));
    }
    let mut bytes = Vec::new();
    file.take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > BYTES_MAX {
        Err(content("is too long for what it should have"))
    } else {
        Ok(bytes)
    }
}

pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let content = |reason: &str| TlsError::Content { path: path.to_owned(), reason: reason.to_owned() };
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes(path)?).collect();
    let read = read.map_err(|_| content("has a certificate that is not PEM"))?;
    if read.is_empty() { Err(content("has no certificate (PEM)")) } else { Ok(read) }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let reason = "has no private key (PEM: PKCS 8, PKCS 1 or SEC 1, without a password)";
    PrivateKeyDer::from_pem_slice(&bytes(path)?)
        .map_err(|_| TlsError::Content { path: path.to_owned(), reason: reason.to_owned() })
}

fn roots(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        let added = roots.add(certificate);
        added.map_err(|error| TlsError::Content { path: path.to_owned(), reason: error.to_string() })?;
    }
    Ok(roots)
}

fn system_roots() -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    let (_added, _odd) = roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        return Err(TlsError::Settings(
            "this system has no authorities to trust: name the server's with a file of certificates",
        ));
    }
    Ok(roots)
}

#[cfg(test)]
mod tests;
