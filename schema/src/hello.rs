//! The first 16 bytes in each direction. They identify a peer and agree on a version of the wire
//! before any length is trusted.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `LODESTOR` |
//! | 8 | 2 | newest wire version of the sender, little-endian |
//! | 10 | 2 | oldest wire version of the sender; 0: the newest alone |
//! | 12 | 2 | in an answer: the version of the connection, 0 where the ends have none in common |
//! | 14 | 2 | zero, reserved |
//!
//! The client sends its hello first and the server answers. The version of the connection is the
//! newest one that both speak. Where there is none the server ends the connection after its answer.
//!
//! A hello up to version 3 has no range: bytes 10 to 15 are zero. Its sender expects the same 16
//! bytes and ends the connection after any others. So a server repeats such a hello if it speaks
//! the version. A client whose range was answered by such a hello connects again and sends the same
//! one.

use crate::error::WireError;
use crate::limits::{HELLO_BYTES, WIRE_VERSION_PLAIN_MAX};
use crate::wire_versions::WireVersions;

const MAGIC: [u8; 8] = *b"LODESTOR";

/// Returns the hello of a client of this crate.
#[must_use]
pub fn hello() -> [u8; HELLO_BYTES] {
    WireVersions::SPOKEN.hello()
}

/// Returns the hello of a peer that speaks one version and knows no ranges, in either direction.
#[must_use]
pub fn plain_hello(version: u16) -> [u8; HELLO_BYTES] {
    Fields { newest: version, oldest: 0, agreed: 0 }.to_bytes()
}

/// Client side of a server's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agreement {
    /// The connection has this version.
    Version(u16),
    /// The server knows no ranges: connect again and send [`plain_hello`] of this version.
    Plain(u16),
}

/// The numbers of a hello.
struct Fields {
    newest: u16,
    oldest: u16,
    agreed: u16,
}

impl WireVersions {
    /// Returns the hello of a client that speaks these versions.
    #[must_use]
    pub fn hello(self) -> [u8; HELLO_BYTES] {
        Fields { newest: self.newest, oldest: self.oldest, agreed: 0 }.to_bytes()
    }

    /// Returns what a server that speaks these versions answers to a client's hello, and the
    /// version of the connection. After an error the connection ends: with the answer, if there is
    /// one.
    pub fn answer(
        self,
        theirs: &[u8; HELLO_BYTES],
    ) -> (Option<[u8; HELLO_BYTES]>, Result<u16, WireError>) {
        let fields = match Fields::read(theirs) {
            Ok(fields) if fields.agreed == 0 => fields,
            Ok(_) => return (None, Err(WireError::Reserved)),
            Err(error) => return (None, Err(error)),
        };
        let found = fields.versions();
        let common = self.newest_common(found);
        let agreed = common.ok_or(WireError::Version { found, ours: self });
        let answer = match common {
            Some(version) if fields.oldest == 0 => plain_hello(version),
            _ => {
                let agreed = common.unwrap_or(0);
                Fields { newest: self.newest, oldest: self.oldest, agreed }.to_bytes()
            }
        };
        (Some(answer), agreed)
    }

    /// Checks the answer to [`WireVersions::hello`] of these versions.
    ///
    /// # Errors
    /// - `Magic`: the peer speaks another protocol.
    /// - `Version`: there is no version in common.
    /// - `Reserved`: the peer sets reserved bits.
    /// - `Malformed`: the peer has chosen a version that is not the newest in common.
    pub fn check_answer(self, theirs: &[u8; HELLO_BYTES]) -> Result<Agreement, WireError> {
        let fields = Fields::read(theirs)?;
        let found = fields.versions();
        let Some(expected) = self.newest_common(found) else {
            return Err(WireError::Version { found, ours: self });
        };
        match (fields.oldest, fields.agreed) {
            (0, 0) if expected <= WIRE_VERSION_PLAIN_MAX => Ok(Agreement::Plain(expected)),
            (_, agreed) if agreed == expected => Ok(Agreement::Version(agreed)),
            (_, agreed) => {
                let reason = format!("expected version {expected} of {found}, found {agreed}");
                Err(WireError::Malformed { message: "hello", reason })
            }
        }
    }

    /// Checks the answer to [`plain_hello`] of `version`, which is one of these.
    ///
    /// # Errors
    /// As [`WireVersions::check_answer`]; `Version` for any answer of another version.
    pub fn check_plain_answer(
        self,
        version: u16,
        theirs: &[u8; HELLO_BYTES],
    ) -> Result<u16, WireError> {
        let fields = Fields::read(theirs)?;
        if *theirs != plain_hello(version) {
            return Err(WireError::Version { found: fields.versions(), ours: self });
        }
        Ok(version)
    }
}

impl Fields {
    fn to_bytes(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&self.newest.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.oldest.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.agreed.to_le_bytes());
        bytes
    }

    /// Reads a hello whose numbers can be.
    fn read(bytes: &[u8; HELLO_BYTES]) -> Result<Self, WireError> {
        let [m0, m1, m2, m3, m4, m5, m6, m7, n0, n1, o0, o1, a0, a1, r0, r1] = *bytes;
        let found = [m0, m1, m2, m3, m4, m5, m6, m7];
        if found != MAGIC {
            return Err(WireError::Magic { found });
        }
        let number = |low, high| u16::from_le_bytes([low, high]);
        let fields =
            Self { newest: number(n0, n1), oldest: number(o0, o1), agreed: number(a0, a1) };
        if [r0, r1] != [0, 0] {
            return Err(WireError::Reserved);
        }
        if fields.newest == 0 || fields.oldest > fields.newest {
            let reason = format!("versions {} to {} are none", fields.oldest, fields.newest);
            return Err(WireError::Malformed { message: "hello", reason });
        }
        Ok(fields)
    }

    /// Returns the versions of the sender.
    fn versions(&self) -> WireVersions {
        let oldest = if self.oldest == 0 { self.newest } else { self.oldest };
        WireVersions { oldest, newest: self.newest }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::limits::WIRE_VERSION;

    /// The hello of version 3 as recorded: its sender takes these bytes and no others.
    const RECORDED_3: [u8; HELLO_BYTES] = *b"LODESTOR\x03\0\0\0\0\0\0\0";
    const SPOKEN: WireVersions = WireVersions::SPOKEN;

    fn versions() -> impl Strategy<Value = WireVersions> {
        (4u16..9, 0u16..4).prop_map(|(newest, n)| WireVersions { oldest: newest - n, newest })
    }

    proptest! {
        #[test]
        fn both_ends_agree_on_the_newest_common_version(client in versions(), server in versions()) {
            let spoken = |of: WireVersions| of.oldest..=of.newest;
            let expected = spoken(client).filter(|version| spoken(server).contains(version)).max();
            let (answer, at_server) = server.answer(&client.hello());
            let at_client = client.check_answer(&answer.unwrap());
            let Some(expected) = expected else {
                let refused = |found, ours| WireError::Version { found, ours };
                prop_assert_eq!(at_server, Err(refused(client, server)));
                prop_assert_eq!(at_client, Err(refused(server, client)));
                return Ok(());
            };
            prop_assert_eq!(at_server, Ok(expected));
            prop_assert_eq!(at_client, Ok(Agreement::Version(expected)));
        }

        #[test]
        fn no_bytes_panic_and_none_agree_on_what_is_not_spoken(
            tail in prop::array::uniform8(prop_oneof![Just(0u8), 0u8..7, any::<u8>()]),
        ) {
            let mut bytes = hello();
            bytes[8..].copy_from_slice(&tail);
            if let Ok(version) = SPOKEN.answer(&bytes).1 {
                prop_assert!(SPOKEN.contains(version));
            }
            if let Ok(Agreement::Version(version) | Agreement::Plain(version)) =
                SPOKEN.check_answer(&bytes)
            {
                prop_assert!(SPOKEN.contains(version));
            }
        }
    }

    #[test]
    fn every_changed_bit_of_magic_and_reserve_is_refused() {
        let answer = SPOKEN.answer(&hello()).0.unwrap();
        assert_eq!(SPOKEN.check_answer(&answer), Ok(Agreement::Version(WIRE_VERSION)));
        for bit in (0..64).chain(12 * 8..16 * 8) {
            let (mut asked, mut answered) = (hello(), answer);
            asked[bit / 8] ^= 1 << (bit % 8);
            answered[bit / 8] ^= 1 << (bit % 8);
            assert!(SPOKEN.answer(&asked).1.is_err(), "bit {bit}");
            assert!(SPOKEN.check_answer(&answered).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_peer_of_version_3_gets_and_sends_the_bytes_of_version_3() {
        assert_eq!(plain_hello(3), RECORDED_3);
        assert_eq!(SPOKEN.answer(&RECORDED_3), (Some(RECORDED_3), Ok(3)));
        assert_eq!(SPOKEN.check_answer(&RECORDED_3), Ok(Agreement::Plain(3)));
        assert_eq!(SPOKEN.check_plain_answer(3, &RECORDED_3), Ok(3));
        let newer = plain_hello(5);
        let found = WireVersions { oldest: 5, newest: 5 };
        let refused = WireError::Version { found, ours: SPOKEN };
        assert_eq!(SPOKEN.check_plain_answer(3, &newer), Err(refused));
    }

    #[test]
    fn a_plain_hello_of_a_version_with_ranges_and_another_choice_are_refused() {
        assert!(SPOKEN.check_answer(&plain_hello(WIRE_VERSION)).is_err());
        let WireVersions { oldest, newest } = SPOKEN;
        for agreed in [0, oldest, newest + 1] {
            let answer = Fields { newest, oldest, agreed }.to_bytes();
            assert!(SPOKEN.check_answer(&answer).is_err(), "{agreed}");
        }
    }

    #[test]
    fn both_ranges_are_named() {
        let ours = WireVersions { oldest: 3, newest: 4 };
        let found = WireVersions { oldest: 9, newest: 9 };
        let text = WireError::Version { found, ours }.to_string();
        assert!(text.contains("version 9, this side 3 to 4"), "{text}");
    }
}
