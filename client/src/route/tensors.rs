//! Positions of the client's tensors on each server. A tensor is a name and a uuid: one that was
//! dropped and created again is another tensor, wherever it is listed.

use lodestore_schema::Stripes;
use lodestore_schema::reply::{Description, TensorDescription};

use crate::address::Address;
use crate::error::ClientError;

/// A tensor of the client on one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TensorPlace {
    /// Its position in the server's list, and the distribution of its rows over shards.
    At { position: u16, stripes: Stripes },
    /// The server has another tensor of this name.
    Replaced,
    /// The server has no tensor of this name.
    Missing,
}

impl TensorPlace {
    /// Finds a tensor on a server.
    pub(super) fn of(known: &TensorDescription, description: &Description) -> Self {
        let mut places = (0u16..).zip(&description.tensors);
        let Some((position, found)) = places.find(|(_, it)| it.name == known.name) else {
            return Self::Missing;
        };
        match Stripes::new(description.n_shards, found.stripe_rows) {
            Some(stripes) if is_same(known, found) => Self::At { position, stripes },
            _ => Self::Replaced,
        }
    }
}

/// Returns whether two servers describe one tensor. Before wire version 6 they report no uuid.
fn is_same(one: &TensorDescription, other: &TensorDescription) -> bool {
    let is_unknown = one.uuid == [0; 16] || other.uuid == [0; 16];
    let shape = |it: &TensorDescription| (it.dtype.clone(), it.width, it.row_bytes);
    (is_unknown || one.uuid == other.uuid) && shape(one) == shape(other)
}

/// Returns whether two servers have the same tensors in the same order.
pub(crate) fn have_same_tensors(one: &Description, other: &Description) -> bool {
    one.tensors.len() == other.tensors.len()
        && one.tensors.iter().zip(&other.tensors).all(|(a, b)| a.name == b.name && is_same(a, b))
}

/// Returns the tensors of these servers: those of the first server, then those that only others
/// have.
///
/// # Errors
/// Servers have different tensors with the same name.
pub(crate) fn known_tensors(
    servers: &[(Address, Description)],
) -> Result<Vec<TensorDescription>, ClientError> {
    let mut known: Vec<(TensorDescription, &Address)> = Vec::new();
    for (address, description) in servers {
        for found in &description.tensors {
            match known.iter().find(|(it, _)| it.name == found.name) {
                None => known.push((found.clone(), address)),
                Some((one, _)) if is_same(one, found) => {}
                Some((_, other)) => {
                    let (address, other) = (address.clone(), (*other).clone());
                    return Err(ClientError::TensorsDiffer {
                        tensor: found.name.clone(),
                        address,
                        other,
                    });
                }
            }
        }
    }
    Ok(known.into_iter().map(|(tensor, _)| tensor).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str, uuid: u8) -> TensorDescription {
        TensorDescription {
            name: name.into(),
            dtype: "f32".into(),
            width: 1,
            row_bytes: 4,
            stripe_rows: 2,
            uuid: [uuid; 16],
        }
    }

    fn server(tensors: &[TensorDescription]) -> (Address, Description) {
        let description =
            Description { n_shards: 1, tensors: tensors.to_vec(), ..Description::default() };
        ("127.0.0.1:1".parse().unwrap(), description)
    }

    #[test]
    fn a_tensor_is_found_by_name_and_uuid_wherever_it_is_listed() {
        let (_, found) = server(&[tensor("feat", 1), tensor("h2", 3), tensor("h1", 4)]);
        let position = |known| match TensorPlace::of(&known, &found) {
            TensorPlace::At { position, .. } => Ok(position),
            other => Err(other),
        };
        assert_eq!(position(tensor("feat", 1)), Ok(0));
        assert_eq!(position(tensor("h2", 3)), Ok(1));
        assert_eq!(position(tensor("h1", 2)), Err(TensorPlace::Replaced));
        assert_eq!(position(tensor("h3", 2)), Err(TensorPlace::Missing));
        // A server before version 6 reports no uuid; the shapes must be the same nevertheless.
        assert_eq!(position(tensor("h1", 0)), Ok(2));
        assert_eq!(
            position(TensorDescription { width: 2, ..tensor("h1", 0) }),
            Err(TensorPlace::Replaced)
        );
    }

    #[test]
    fn servers_may_have_more_tensors_than_others_but_not_different_ones_of_one_name() {
        let (one, more) = ([tensor("feat", 1)], [tensor("h1", 2), tensor("feat", 1)]);
        let names = |servers: &[(Address, Description)]| {
            let known = known_tensors(servers).map_err(|error| error.to_string())?;
            Ok::<_, String>(known.into_iter().map(|it| it.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&[server(&one), server(&more)]).unwrap(), ["feat", "h1"]);
        let told = names(&[server(&one), server(&[tensor("feat", 7)])]).unwrap_err();
        assert!(told.contains("`feat`") && told.contains("127.0.0.1:1"), "{told}");
    }
}
