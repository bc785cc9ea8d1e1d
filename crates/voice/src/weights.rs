//! A model's tensors by name, as the networks ask for them. Weight norms are resolved here, whichever way a file writes them.

use std::collections::HashMap;

use hanzo_engine_runtime::LoadError;
use hanzo_engine_runtime::tensor::Tensor;

/// Tensors by name.
pub(crate) struct Weights {
    file: String,
    tensors: HashMap<String, Tensor>,
}

/// Numbers and their shape.
pub(crate) struct Numbers {
    pub(crate) shape: Vec<usize>,
    pub(crate) data: Vec<f32>,
}

impl Weights {
    pub(crate) fn new(file: &str, tensors: &[Tensor]) -> Weights {
        let tensors = tensors.iter().map(|tensor| (tensor.name.clone(), tensor.clone())).collect();
        Weights { file: file.to_owned(), tensors }
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// That something in the files is not as it must be.
    pub(crate) fn corrupt(&self, what: impl Into<String>, reason: impl Into<String>) -> LoadError {
        LoadError::Corrupt { file: self.file.clone(), what: what.into(), reason: reason.into() }
    }

    /// The shape of a tensor or of what a weight norm makes.
    pub(crate) fn shape(&self, name: &str) -> Result<Vec<usize>, LoadError> {
        let direction = norm_names(name).map(|[_, direction]| direction);
        let names = [name.to_owned()].into_iter().chain(direction);
        let found = names.into_iter().find_map(|name| self.tensors.get(&name));
        found.map(|tensor| tensor.shape.clone()).ok_or_else(|| self.missing(name))
    }

    fn missing(&self, name: &str) -> LoadError {
        LoadError::Missing { file: self.file.clone(), what: format!("tensor {name}"), hint: String::new() }
    }

    /// A tensor of any shape; a weight that is stored as a norm and a direction is made whole.
    pub(crate) fn numbers(&self, name: &str) -> Result<Numbers, LoadError> {
        if let Some(tensor) = self.tensors.get(name) {
            return Ok(Numbers { shape: tensor.shape.clone(), data: tensor.to_f32()? });
        }
        for [norm, direction] in norm_names(name) {
            let (Some(norm), Some(direction)) = (self.tensors.get(&norm), self.tensors.get(&direction))
            else {
                continue;
            };
            let (norms, mut data) = (norm.to_f32()?, direction.to_f32()?);
            let outermost = direction.shape[0];
            if norms.len() != outermost || data.is_empty() {
                let reason = format!("{} norms of {outermost} parts", norms.len());
                return Err(self.corrupt(format!("tensor {name}"), reason));
            }
            for (part, norm) in data.chunks_exact_mut(direction.elements() / outermost).zip(norms) {
                let length = part.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt() as f32;
                part.iter_mut().for_each(|x| *x *= norm / length);
            }
            return Ok(Numbers { shape: direction.shape.clone(), data });
        }
        Err(self.missing(name))
    }

    /// A tensor of this shape; 0 stands for any size.
    ///
    /// # Errors
    /// `Missing`, or `Corrupt` with both shapes.
    pub(crate) fn shaped<const N: usize>(
        &self,
        name: &str,
        expected: [usize; N],
    ) -> Result<([usize; N], Vec<f32>), LoadError> {
        let Numbers { shape, data } = self.numbers(name)?;
        let fits =
            shape.len() == N && shape.iter().zip(&expected).all(|(&is, &must)| must == 0 || is == must);
        match <[usize; N]>::try_from(shape.as_slice()) {
            Ok(shape) if fits => Ok((shape, data)),
            _ => {
                Err(self
                    .corrupt(format!("tensor {name}"), format!("expected {expected:?}, file has {shape:?}")))
            }
        }
    }

    /// A vector of so many numbers.
    pub(crate) fn vector(&self, name: &str, length: usize) -> Result<Vec<f32>, LoadError> {
        let Numbers { shape, data } = self.numbers(name)?;
        if data.len() != length {
            return Err(self.corrupt(
                format!("tensor {name}"),
                format!("expected {length} numbers, file has {shape:?}"),
            ));
        }
        Ok(data)
    }

    /// The same, or nothing where there is no such tensor.
    pub(crate) fn vector_if(&self, name: &str, length: usize) -> Result<Option<Vec<f32>>, LoadError> {
        if self.has(name) { self.vector(name, length).map(Some) } else { Ok(None) }
    }
}

/// What a weight that is stored as norm and direction is called.
fn norm_names(name: &str) -> [[String; 2]; 2] {
    let module = name.strip_suffix(".weight").unwrap_or(name);
    [
        [format!("{name}_g"), format!("{name}_v")],
        ["original0", "original1"].map(|part| format!("{module}.parametrizations.weight.{part}")),
    ]
}
