//! What ranks that are processes tell each other before a call.

use burn::tensor::FloatDType;

use crate::{Call, Verb};

/// One rank's next step in a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Header {
    /// It makes a call.
    Call(Call),
    /// It splits the group, and proposes a tag for the new ones.
    Split { color: usize, tag: usize },
    /// It has left the group, and sends the reason next, if there is one.
    Left,
}

/// A header in transit: verb and element type, root or color, length or tag, and a mark of this layout.
pub(crate) type Words = [u64; 4];

/// The bytes `tshard` and a version, which all ranks have to share.
const MARK: u64 = u64::from_le_bytes(*b"tshard\x01\x00");

const DTYPES: [FloatDType; 4] = [
    FloatDType::F32,
    FloatDType::F64,
    FloatDType::BF16,
    FloatDType::F16,
];

impl Header {
    /// What the rank does, as errors tell it.
    #[cfg(any(feature = "mpi", feature = "nccl", test))]
    pub(crate) fn call(&self) -> Option<Call> {
        match *self {
            Self::Call(call) => Some(call),
            Self::Split { .. } => Some(Call::without_elements(Verb::Split)),
            Self::Left => None,
        }
    }

    pub(crate) fn encode(&self) -> Words {
        let (verb, dtype, place, len) = match *self {
            Self::Call(Call { verb, len, dtype }) => {
                let dtype = DTYPES.iter().position(|&known| known == dtype);
                let (verb, root) = match verb {
                    Verb::AllReduce => (0, 0),
                    Verb::ReduceScatter => (1, 0),
                    Verb::AllGather => (2, 0),
                    Verb::Broadcast { root } => (3, root),
                    Verb::Barrier => (4, 0),
                    Verb::Split => unreachable!("a split has a header of its own"),
                };
                (verb, dtype.expect("others were refused before"), root, len)
            }
            Self::Split { color, tag } => (5, 0, color, tag),
            Self::Left => (6, 0, 0, 0),
        };
        [verb | (dtype as u64) << 8, place as u64, len as u64, MARK]
    }

    /// The header, unless another program, or another version of this one, has sent it.
    pub(crate) fn decode([code, place, len, mark]: Words) -> Option<Self> {
        let dtype = *DTYPES.get(usize::try_from(code >> 8).ok()?)?;
        let (place, len) = (usize::try_from(place).ok()?, usize::try_from(len).ok()?);
        let call = |verb| Self::Call(Call { verb, len, dtype });
        let header = match code & 0xff {
            0 => call(Verb::AllReduce),
            1 => call(Verb::ReduceScatter),
            2 => call(Verb::AllGather),
            3 => call(Verb::Broadcast { root: place }),
            4 => call(Verb::Barrier),
            5 => Self::Split {
                color: place,
                tag: len,
            },
            6 => Self::Left,
            _ => return None,
        };
        (mark == MARK).then_some(header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_is_read() {
        for dtype in DTYPES {
            for verb in [
                Verb::AllReduce,
                Verb::ReduceScatter,
                Verb::AllGather,
                Verb::Broadcast { root: 70_000 },
                Verb::Barrier,
            ] {
                let len = 1 << 40;
                let header = Header::Call(Call { verb, len, dtype });
                assert_eq!(Header::decode(header.encode()), Some(header));
            }
        }
        let split = Header::Split {
            color: usize::MAX,
            tag: 3,
        };
        let call = Call::without_elements(Verb::Split);
        assert_eq!((split.call(), Header::Left.call()), (Some(call), None));
        for header in [split, Header::Left] {
            assert_eq!(Header::decode(header.encode()), Some(header));
        }
    }

    #[test]
    fn what_others_send_is_not() {
        assert_eq!(Header::decode([7, 0, 0, MARK]), None);
        assert_eq!(Header::decode([4 << 8, 0, 0, MARK]), None);
        assert_eq!(Header::decode([0, 0, 0, MARK + 1]), None);
    }
}
