//! A model with the state of its optimiser, and the learning rate of each of its steps.

use std::f64::consts::PI;

use lodestore_models::adam::{Adam, clip};
use lodestore_models::model::Model;

use crate::config::TrainConfig;
use crate::error::{TrainError, check};
use crate::options::{RateSchedule, WarmUp};

/// A model and its optimiser. Mini-batch training has one, updated by the gradients of all workers.
/// `sdt` has one for each partition.
#[derive(Debug)]
pub(crate) struct Replica {
    pub(crate) model: Model,
    pub(crate) adam: Adam,
    rate: LearningRate,
    clip_norm: Option<f32>,
}

impl Replica {
    /// Returns a replica of `model` without updates, in a run of `n_steps` an epoch.
    pub(crate) fn new(
        model: &Model,
        config: &TrainConfig,
        n_steps: u32,
    ) -> Result<Self, TrainError> {
        let (optimizer, clip_norm) = (config.update.optimizer, config.update.clip_norm);
        let adam = Adam::new(model.parameters(), optimizer, config.weight_decay);
        let rate = LearningRate::new(config, n_steps)?;
        Ok(Self { model: model.clone(), adam, rate, clip_norm })
    }

    /// Replaces the parameters.
    pub(crate) fn set_values(&mut self, values: &[Vec<f32>]) {
        self.adam.set_values(values);
    }

    /// Makes one update by gradients that were reduced over all workers, so that all processes clip
    /// alike.
    pub(crate) fn update(&mut self, gradients: &mut [Vec<f32>]) {
        self.update_at(self.adam.n_steps.into(), gradients);
    }

    /// Makes one update with the learning rate of step `step` of the run.
    pub(crate) fn update_at(&mut self, step: u64, gradients: &mut [Vec<f32>]) {
        if let Some(limit) = self.clip_norm {
            clip(gradients, limit);
        }
        self.adam.step(gradients, self.rate.at(step));
    }
}

/// The learning rate as a function of the step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LearningRate {
    whole: f64,
    /// Steps of the warm-up.
    warm_up: u64,
    /// Steps of the whole run, under a cosine.
    cosine_end: Option<u64>,
}

impl LearningRate {
    /// Makes the rate of a run with `n_steps` in each epoch. Fails if a cosine would end before the
    /// warm-up.
    pub(crate) fn new(config: &TrainConfig, n_steps: u32) -> Result<Self, TrainError> {
        let update = config.update;
        let warm_up = match update.warm_up {
            WarmUp::Steps(n) => n.into(),
            WarmUp::Epochs(n) => u64::from(n) * u64::from(n_steps),
        };
        let all = u64::from(config.epochs) * u64::from(n_steps);
        let cosine_end = (update.schedule == RateSchedule::Cosine).then_some(all);
        // A run without steps has no rate either.
        let is_shorter = cosine_end.is_none_or(|end| end == 0 || warm_up < end);
        let expected = format!("shorter than the {all} steps of a cosine");
        check(is_shorter, "warm_up", &expected, update.warm_up)?;
        Ok(Self { whole: config.learning_rate, warm_up, cosine_end })
    }

    /// Returns the rate of step number `step`, from 0.
    pub(crate) fn at(&self, step: u64) -> f64 {
        if step < self.warm_up {
            return self.whole * (step + 1) as f64 / self.warm_up as f64;
        }
        let Some(end) = self.cosine_end else { return self.whole };
        let (done, all) = (step - self.warm_up, end - self.warm_up);
        self.whole * 0.5 * (1.0 + (PI * done as f64 / all as f64).cos())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::UpdateOptions;
    use crate::run_model::spec_of;

    fn replica(update: UpdateOptions) -> Replica {
        let (learning_rate, weight_decay, epochs) = (0.5, 0.0, 2);
        let usual = TrainConfig::default();
        let config = TrainConfig { update, learning_rate, weight_decay, epochs, ..usual };
        let model = Model::new(&spec_of(&config, 2, 2), 1);
        Replica::new(&model, &config, 4).unwrap()
    }

    fn gradients(replica: &Replica, value: f32) -> Vec<Vec<f32>> {
        replica.adam.lengths().into_iter().map(|n| vec![value; n]).collect()
    }

    #[test]
    fn each_update_moves_by_the_rate_of_its_step() {
        let (schedule, warm_up) = (RateSchedule::Cosine, WarmUp::Steps(4));
        let mut replica = replica(UpdateOptions { schedule, warm_up, ..UpdateOptions::default() });
        // Under a constant gradient Adam's update is the rate itself.
        let half = 0.5f64.sqrt() / 2.0;
        for share in [0.25, 0.5, 0.75, 1.0, 1.0, 0.5 + half, 0.5, 0.5 - half] {
            let before = replica.adam.values()[0][0];
            let mut gradients = gradients(&replica, 0.1);
            replica.update(&mut gradients);
            let moved = f64::from(before - replica.adam.values()[0][0]);
            assert!((moved - 0.5 * share).abs() < 1e-4, "{moved} {share}");
        }
    }

    #[test]
    fn an_update_takes_the_clipped_gradient() {
        let clip_norm = Some(0.25);
        let mut replica = replica(UpdateOptions { clip_norm, ..UpdateOptions::default() });
        let mut gradients = gradients(&replica, 3.0);
        replica.update(&mut gradients);
        let means = replica.adam.state().means;
        let norm = means.iter().flatten().map(|mean| (10.0 * mean).powi(2)).sum::<f32>().sqrt();
        assert!((norm - 0.25).abs() < 1e-5, "{norm}");
    }

    fn rate(schedule: RateSchedule, warm_up: WarmUp) -> Result<LearningRate, TrainError> {
        let update = UpdateOptions { schedule, warm_up, ..UpdateOptions::default() };
        let (learning_rate, epochs) = (0.3, 4);
        LearningRate::new(
            &TrainConfig { update, learning_rate, epochs, ..TrainConfig::default() },
            5,
        )
    }

    fn rates(schedule: RateSchedule, warm_up: WarmUp) -> Vec<f64> {
        let rate = rate(schedule, warm_up).unwrap();
        (0..20).map(|step| rate.at(step) / 0.3).collect()
    }

    fn is_near(found: f64, expected: f64) -> bool {
        (found - expected).abs() < 1e-12
    }

    #[test]
    fn a_constant_rate_has_the_bits_of_the_setting() {
        let rate = rate(RateSchedule::Constant, WarmUp::Steps(0)).unwrap();
        assert!((0..20).chain([u64::MAX]).all(|step| rate.at(step).to_bits() == 0.3f64.to_bits()));
    }

    #[test]
    fn a_warm_up_rises_by_equal_parts_and_its_last_step_has_the_whole_rate() {
        let found = rates(RateSchedule::Constant, WarmUp::Steps(4));
        for (found, expected) in found.iter().zip([0.25, 0.5, 0.75, 1.0, 1.0, 1.0]) {
            assert!(is_near(*found, expected), "{found} {expected}");
        }
        // Two epochs of five steps.
        let found = rates(RateSchedule::Constant, WarmUp::Epochs(2));
        assert!(is_near(found[8], 0.9) && is_near(found[9], 1.0) && is_near(found[19], 1.0));
    }

    #[test]
    fn a_cosine_begins_whole_is_half_in_the_middle_and_would_be_0_after_the_last_step() {
        let found = rates(RateSchedule::Cosine, WarmUp::Steps(0));
        assert!(is_near(found[0], 1.0) && is_near(found[10], 0.5));
        assert!(is_near(found[5], 0.5 + 0.125f64.sqrt()));
        assert!(found.windows(2).all(|pair| pair[1] < pair[0]) && found[19] > 0.0);
        let rate = rate(RateSchedule::Cosine, WarmUp::Steps(0)).unwrap();
        assert!(is_near(rate.at(20), 0.0));
        // After a warm-up the rest of the run is the half cosine.
        let found = rates(RateSchedule::Cosine, WarmUp::Steps(10));
        assert!(is_near(found[9], 1.0) && is_near(found[10], 1.0) && is_near(found[15], 0.5));
    }

    #[test]
    fn a_warm_up_as_long_as_the_cosine_is_refused() {
        for warm_up in [WarmUp::Steps(20), WarmUp::Epochs(4), WarmUp::Steps(u32::MAX)] {
            let error = rate(RateSchedule::Cosine, warm_up).unwrap_err().to_string();
            assert!(error.contains("`warm_up` must be shorter than the 20 steps"), "{error}");
            assert!(rate(RateSchedule::Constant, warm_up).is_ok());
        }
        assert!(rate(RateSchedule::Cosine, WarmUp::Steps(19)).is_ok());
    }
}
