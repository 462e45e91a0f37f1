//! Choices of models, layers and optimisers, by the names that other trainers have for them.

use serde::Serialize;

/// Kind of the layers of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelKind {
    /// GraphSAGE.
    Sage,
    /// Graph convolution.
    Gcn,
    /// Graph attention.
    Gat,
}

/// A measure of how good logits are, from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// The share of nodes whose class has the largest logit. One class a node.
    #[default]
    Accuracy,
    /// The harmonic mean of precision and recall over all labels of all nodes. With one class a
    /// node it is the accuracy.
    F1Micro,
    /// The area under the curve of true over false positives: the chance that a node with the label
    /// has a higher logit than one without. With several labels a node it is the mean over labels
    /// that some measured nodes have and others lack. Two classes, or several labels a node.
    RocAuc,
}

/// Normalisation of each layer's rows but the last one's, before their activation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Norm {
    /// None.
    #[default]
    None,
    /// Normalises each row over its columns (Ba et al. 2016).
    Layer,
}

/// Options of layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LayerOptions {
    /// `sage` and `gcn`: how rows are normalised.
    pub norm: Norm,
    /// `sage` and `gcn`, of three layers or more. Each layer between two hidden ones adds its input
    /// rows to its output, before their activation.
    pub residual: bool,
}

/// Rule by which gradients become updates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Optimizer {
    /// Adam; weight decay is a part of the gradient.
    #[default]
    Adam,
    /// AdamW (Loshchilov and Hutter 2019): weight decay shrinks parameters directly.
    AdamW,
}

/// Implements `Display` and `FromStr` by the names of variants. The error of another name is a
/// `String` that lists all of them; `$what` says what is named.
#[macro_export]
macro_rules! by_name {
    ($kind:ident, $what:literal, $($variant:ident = $name:literal),+) => {
        impl std::fmt::Display for $kind {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self { $(Self::$variant => $name),+ })
            }
        }

        impl std::str::FromStr for $kind {
            type Err = String;

            fn from_str(name: &str) -> Result<Self, String> {
                match name {
                    $($name => Ok(Self::$variant),)+
                    _ => {
                        let all = [$($name),+].join(", ");
                        Err(format!("no {} `{name}`; there are: {all}", $what))
                    }
                }
            }
        }
    };
}

by_name!(ModelKind, "model", Sage = "sage", Gcn = "gcn", Gat = "gat");
by_name!(Metric, "metric", Accuracy = "accuracy", F1Micro = "f1-micro", RocAuc = "roc-auc");
by_name!(Norm, "normalisation", None = "none", Layer = "layer");
by_name!(Optimizer, "optimizer", Adam = "adam", AdamW = "adamw");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_others_are_refused() {
        for of in [Norm::None, Norm::Layer] {
            assert_eq!(of.to_string().parse(), Ok(of));
        }
        for of in [Optimizer::Adam, Optimizer::AdamW] {
            assert_eq!(of.to_string().parse(), Ok(of));
        }
        let refused = "batch".parse::<Norm>().unwrap_err();
        assert_eq!(refused, "no normalisation `batch`; there are: none, layer");
    }
}
