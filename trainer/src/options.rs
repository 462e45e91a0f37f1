//! Options of layers and of updates.

use std::{fmt, str::FromStr};

pub(crate) use lodestore_models::by_name;
pub use lodestore_models::options::{LayerOptions, Metric, ModelKind, Norm, Optimizer};
use serde::Serialize;

use crate::error::{TrainError, check};

/// The learning rate after its warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RateSchedule {
    /// Always the same.
    #[default]
    Constant,
    /// Half a cosine, from the learning rate down to 0 after the last epoch.
    Cosine,
}

/// Time in which the learning rate rises: in step t of n, from 1, it is t/n of the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum WarmUp {
    /// For this many steps.
    Steps(u32),
    /// For the steps of this many epochs.
    Epochs(u32),
}

/// Options of updates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct UpdateOptions {
    /// The optimiser.
    pub optimizer: Optimizer,
    /// The learning rate after the warm-up.
    pub schedule: RateSchedule,
    /// The warm-up; 0 steps: none.
    pub warm_up: WarmUp,
    /// Most that the Euclidean norm of all gradients together is, after their reduction over
    /// workers; larger ones are scaled down to it.
    pub clip_norm: Option<f32>,
}

/// Fails for options of layers that a model of this kind and number of layers does not have.
pub(crate) fn check_layer_options(
    options: LayerOptions,
    model: ModelKind,
    n_layers: usize,
) -> Result<(), TrainError> {
    let LayerOptions { norm, residual } = options;
    let has_options = model != ModelKind::Gat;
    check(norm == Norm::None || has_options, "norm", "none for the model gat", norm)?;
    check(!residual || has_options, "residual", "off for the model gat", "on")?;
    let expected = format!("off for {n_layers} layers: it joins hidden ones, of which 3 have two");
    check(!residual || n_layers >= 3, "residual", &expected, "on")
}

impl UpdateOptions {
    /// Fails for options that cannot work in a run of `epochs`.
    pub(crate) fn validate(self, epochs: u32) -> Result<(), TrainError> {
        let Self { schedule, warm_up, clip_norm, .. } = self;
        let is_limit = clip_norm.is_none_or(|limit| limit.is_finite() && limit > 0.0);
        check(is_limit, "clip_norm", "positive", clip_norm.unwrap_or_default())?;
        let is_whole = matches!(warm_up, WarmUp::Epochs(n) if n >= epochs);
        let expected = format!("shorter than the {epochs} epochs of a cosine");
        check(schedule == RateSchedule::Constant || !is_whole, "warm_up", &expected, warm_up)
    }
}

impl Default for WarmUp {
    fn default() -> Self {
        Self::Steps(0)
    }
}

impl fmt::Display for WarmUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Steps(n) => write!(f, "{n}"),
            Self::Epochs(n) => write!(f, "{n}epochs"),
        }
    }
}

impl FromStr for WarmUp {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, unit): (&str, fn(u32) -> Self) = match text.strip_suffix("epochs") {
            Some(number) => (number, Self::Epochs),
            None => (text, Self::Steps),
        };
        let number = number.parse().map(unit);
        number.map_err(|_| format!("no warm-up `{text}`; give steps (500) or epochs (2epochs)"))
    }
}

by_name!(RateSchedule, "learning-rate schedule", Constant = "constant", Cosine = "cosine");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TrainConfig;

    #[test]
    fn names_are_read_back_and_others_are_refused() {
        for of in [RateSchedule::Constant, RateSchedule::Cosine] {
            assert_eq!(of.to_string().parse(), Ok(of));
        }
        for of in [WarmUp::Steps(7), WarmUp::Epochs(2)] {
            assert_eq!(of.to_string().parse(), Ok(of));
        }
        let refused = "linear".parse::<RateSchedule>().unwrap_err();
        assert_eq!(refused, "no learning-rate schedule `linear`; there are: constant, cosine");
        assert!("2 epochs".parse::<WarmUp>().unwrap_err().contains("(2epochs)"));
    }

    #[test]
    fn options_that_cannot_work_are_named() {
        let message = |change: fn(&mut TrainConfig)| {
            let mut config = TrainConfig::default();
            change(&mut config);
            config.validate().unwrap_err().to_string()
        };
        for limit in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            let update = UpdateOptions { clip_norm: Some(limit), ..UpdateOptions::default() };
            let config = TrainConfig { update, ..TrainConfig::default() };
            assert!(config.validate().unwrap_err().to_string().contains("`clip_norm`"), "{limit}");
        }
        let of_gat = message(|c| (c.model, c.layer.norm) = (ModelKind::Gat, Norm::Layer));
        assert!(of_gat.contains("`norm` must be none for the model gat, found layer"), "{of_gat}");
        let shallow = message(|c| c.layer.residual = true);
        assert!(shallow.contains("`residual` must be off for 2 layers"), "{shallow}");
        let long = message(|c| {
            (c.update.schedule, c.update.warm_up) = (RateSchedule::Cosine, WarmUp::Epochs(10));
        });
        assert!(long.contains("`warm_up` must be shorter than the 10 epochs"), "{long}");
        for model in [ModelKind::Sage, ModelKind::Gcn] {
            let layer = LayerOptions { norm: Norm::Layer, residual: true };
            let fanouts = TrainConfig::default().fanouts.repeat(2);
            TrainConfig { model, layer, fanouts, ..TrainConfig::default() }.validate().unwrap();
        }
    }
}
