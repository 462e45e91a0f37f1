//! Cost of a subgraph on its device (CaPGNN, Eqs. 13 to 15).

use super::{DeviceProfile, RapaError, RapaParams};

/// For one device, the cost of each thing that a subgraph has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rates {
    per_outer_edge: f64,
    per_edge: f64,
    per_inner_node: f64,
}

/// Checks parameters and profiles, and returns the rates of each of `n_parts` devices, each of
/// which may be the one profile given.
pub(super) fn rates(
    devices: &[DeviceProfile],
    n_parts: usize,
    params: &RapaParams,
) -> Result<Vec<Rates>, RapaError> {
    let RapaParams { alpha, epsilon, .. } = *params;
    if !(0.0..=1.0).contains(&alpha) {
        let (name, expected) = ("alpha", "between 0 and 1");
        return Err(RapaError::Parameter { name, expected, found: alpha });
    }
    if !(epsilon >= 0.0 && epsilon.is_finite()) {
        let (name, expected) = ("epsilon", "0 or more");
        return Err(RapaError::Parameter { name, expected, found: epsilon });
    }
    if devices.len() != n_parts && devices.len() != 1 {
        return Err(RapaError::Devices { parts: n_parts, found: devices.len() });
    }
    let mut slowest = [0.0f64; 5];
    for device in devices {
        for ((figure, seconds), slowest) in device.figures().into_iter().zip(&mut slowest) {
            if !(seconds > 0.0 && seconds.is_finite()) {
                let name = device.name.clone();
                return Err(RapaError::Profile { name, figure, found: seconds });
            }
            *slowest = slowest.max(seconds);
        }
    }
    let of_device = |part: usize| {
        let device = &devices[part % devices.len()];
        let mut relative = [0.0; 5];
        for ((to, (_, seconds)), slowest) in relative.iter_mut().zip(device.figures()).zip(slowest)
        {
            *to = seconds / slowest;
        }
        let [h2d, d2h, idt, spmm, mm] = relative;
        let share = 1.0 / n_parts as f64;
        Rates {
            per_outer_edge: (h2d + d2h) * (1.0 - share) + idt * share,
            per_edge: alpha * spmm,
            per_inner_node: (1.0 - alpha) * mm,
        }
    };
    Ok((0..n_parts).map(of_device).collect())
}

impl Rates {
    /// Returns λ = T_comp + T_comm.
    pub(super) fn cost(&self, inner: u64, edges: u64, outer_edges: u64) -> f64 {
        self.per_outer_edge * outer_edges as f64
            + self.per_edge * edges as f64
            + self.per_inner_node * inner as f64
    }

    /// Returns how slow the device is, for any work.
    pub(super) fn slowness(&self) -> f64 {
        self.per_outer_edge + self.per_edge + self.per_inner_node
    }
}

impl DeviceProfile {
    fn figures(&self) -> [(&'static str, f64); 5] {
        [
            ("h2d_seconds", self.h2d_seconds),
            ("d2h_seconds", self.d2h_seconds),
            ("idt_seconds", self.idt_seconds),
            ("spmm_seconds", self.spmm_seconds),
            ("mm_seconds", self.mm_seconds),
        ]
    }
}
