//! TLS by rustls. Servers reload their certificates when the files change. Clients trust an authority and may
//! show a certificate.

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

use crate::{
    follow::{FileStamps, Follow, follow},
    regular,
};

/// Maximum size of a certificate or key file.
const BYTES_MAX: u64 = 4 << 20;

/// TLS files of a port. Without them it speaks plaintext.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TlsSettings {
    /// Server certificate and intermediate certificates, PEM.
    pub cert: Option<PathBuf>,
    /// Private key of the certificate, PEM.
    pub key: Option<PathBuf>,
    /// Authorities of client certificates, PEM. If set, clients must show a certificate of one of them.
    pub client_ca: Option<PathBuf>,
}

/// TLS files of a client.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClientTls {
    /// Trusted authorities, PEM; unset: those of the system.
    pub ca: Option<PathBuf>,
    /// Client certificate, PEM, for servers that ask for one.
    pub cert: Option<PathBuf>,
    /// Private key of the certificate, PEM.
    pub key: Option<PathBuf>,
}

/// Error of setting up TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// Two settings need each other, and only one is given.
    #[error("{0}")]
    Settings(&'static str),
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A file lacks the expected content. Its actual content is not shown, because it may be a key.
    #[error("{}: {reason}", path.display())]
    Content {
        /// Path of the file.
        path: PathBuf,
        /// Missing content.
        reason: String,
    },
    /// Certificate and key are readable but do not match.
    #[error("{} with its key: {reason}", path.display())]
    Pair {
        /// Path of the certificate.
        path: PathBuf,
        /// Error of rustls.
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

    /// Checks that files that need each other are all named.
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

    /// Checks that the files exist and match.
    ///
    /// # Errors
    /// [`TlsError`], with the file.
    pub fn check_files(&self) -> Result<(), TlsError> {
        self.read(&[]).map(drop)
    }

    fn files(&self) -> Vec<PathBuf> {
        [&self.cert, &self.key, &self.client_ca].into_iter().flatten().cloned().collect()
    }

    /// Builds the server configuration from the files. `protocols` lists the ALPN protocols, best first.
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

/// TLS of a port, as its files are now.
#[derive(Debug)]
pub struct ServerTls {
    settings: TlsSettings,
    protocols: &'static [&'static [u8]],
    config: RwLock<Arc<ServerConfig>>,
}

impl ServerTls {
    /// Reads the files now and again whenever they change. `protocols` lists the ALPN protocols, best first.
    /// None: TLS is off. Must run in an async runtime.
    ///
    /// # Errors
    /// [`TlsError`], with the file.
    pub fn open(
        settings: TlsSettings,
        protocols: &'static [&'static [u8]],
    ) -> Result<Option<Arc<ServerTls>>, TlsError> {
        let seen = FileStamps::of(&settings.files());
        let Some(config) = settings.read(protocols)? else { return Ok(None) };
        let tls = Arc::new(ServerTls { settings, protocols, config: RwLock::new(Arc::new(config)) });
        follow(&tls, seen);
        Ok(Some(tls))
    }

    /// Reads the files again and logs the result.
    pub fn reload(&self) {
        self.changed();
    }

    /// Configuration for the next connection.
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
    /// Builds the client configuration. The files are read again at each call.
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
    let content = |reason: &str| TlsError::Content { path: path.to_owned(), reason: reason.to_owned() };
    let file = regular::open(path).map_err(failed)?.ok_or_else(|| content("is not a file"))?;
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
