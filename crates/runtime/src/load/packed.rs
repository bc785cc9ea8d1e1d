//! Types that matrices are packed as, where a load quantises them.

use std::collections::BTreeMap;
use std::fmt;

use hanzo_engine_ops::DType;

/// Type that a matrix is packed as, if that is not the stored one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PackedType {
    pub(crate) dtype: DType,
    /// HQQ chooses the codes of an affine type, instead of the type's own rule.
    pub(crate) hqq: bool,
}

impl From<DType> for PackedType {
    fn from(dtype: DType) -> PackedType {
        PackedType { dtype, hqq: false }
    }
}

impl PackedType {
    /// Replaces the type by another one, with the same choice of codes.
    pub(crate) fn map(self, to: impl FnOnce(DType) -> DType) -> PackedType {
        PackedType { dtype: to(self.dtype), ..self }
    }
}

impl fmt::Display for PackedType {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.dtype.affine() {
            Some((bits, 64)) if self.hqq => write!(to, "HQQ{bits}"),
            Some((bits, group)) if self.hqq => write!(to, "HQQ{bits}_G{group}"),
            _ => self.dtype.fmt(to),
        }
    }
}

/// Number of matrices that are quantised to each type, and that stay in each, given the target and stored type of
/// each; none if none is quantised.
pub(crate) fn packed_summary(matrices: impl Iterator<Item = (Option<PackedType>, DType)>) -> Option<String> {
    let (mut quantised, mut kept) = (BTreeMap::new(), BTreeMap::new());
    for (packed, stored) in matrices {
        match packed {
            Some(target) => *quantised.entry(target).or_insert(0usize) += 1,
            None => *kept.entry(PackedType::from(stored)).or_insert(0usize) += 1,
        }
    }
    if quantised.is_empty() {
        return None;
    }
    let list = |counts: BTreeMap<PackedType, usize>| {
        let each: Vec<String> = counts.iter().map(|(target, count)| format!("{count} {target}")).collect();
        each.join(", ")
    };
    let kept = if kept.is_empty() { "none".to_owned() } else { list(kept) };
    Some(format!("matrices quantised: {}; as stored: {kept}", list(quantised)))
}
