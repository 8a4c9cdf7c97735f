//! Parameters that are treated alike.

/// Parameters that are treated alike.
#[derive(Clone, Debug, PartialEq)]
pub struct ParameterGroup {
    /// Which parameters belong to it.
    pub select: Select,
    /// Factor on the learning rate.
    pub lr_factor: f64,
    /// Weight decay of the group.
    pub weight_decay: f64,
    /// Frozen parameters have no gradient and no optimizer state, and are not updated.
    pub frozen: bool,
}

/// A rule that picks parameters by name or shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Select {
    /// Tensors of two and more dimensions: what weight decay is usually meant for.
    Matrices,
    /// Scalars and vectors: biases and norm weights.
    Vectors,
    /// Names that match a pattern, where `*` stands for any run of characters: `stages.0.*`, `*.bias`.
    Name(String),
}

impl Select {
    /// Whether the rule picks the parameter `name` of shape `shape`.
    pub fn picks(&self, name: &str, shape: &[usize]) -> bool {
        match self {
            Select::Matrices => shape.len() >= 2,
            Select::Vectors => shape.len() < 2,
            Select::Name(pattern) => matches(pattern, name),
        }
    }
}

/// Whether `name` matches `pattern`, where `*` stands for any run of characters.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((head, tail)) => name.strip_prefix(head).is_some_and(|rest| {
            (0..=rest.len()).any(|at| rest.is_char_boundary(at) && matches(tail, &rest[at..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_names() {
        let check = |pattern: &str, name: &str, expected| {
            assert_eq!(matches(pattern, name), expected, "{pattern} on {name}");
        };
        check("*", "", true);
        check("*.bias", "stages.0.bias", true);
        check("*.bias", "stages.0.bias.x", false);
        check(
            "stages.*.norm*.weight",
            "stages.3.blocks.1.norm2.weight",
            true,
        );
        check("stages.0", "stages.00", false);
    }

    #[test]
    fn matrices_and_vectors_are_told_by_their_dimensions() {
        for (shape, is_matrix) in [
            (&[][..], false),
            (&[7], false),
            (&[1, 1], true),
            (&[8, 3, 3, 3], true),
        ] {
            assert_eq!(Select::Matrices.picks("any", shape), is_matrix);
            assert_eq!(Select::Vectors.picks("any", shape), !is_matrix);
        }
    }
}
