//! What travels between a rank and the hub.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use burn::tensor::{DType, FloatDType, TensorData};

use crate::header::{Header, Words};
use crate::{Call, Verb};

/// What a rank does next in a group, with the elements that it puts in, or why it gives up.
#[derive(Debug, PartialEq)]
pub(super) struct Request {
    pub(super) group: u64,
    pub(super) header: Header,
    pub(super) bytes: Vec<u8>,
}

/// What became of a call.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Answer {
    pub(super) group: u64,
    /// The number of the call in its group.
    pub(super) sequence: u64,
    pub(super) outcome: Outcome,
}

/// The end of a call.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Outcome {
    /// The elements that come out.
    Elements(Vec<u8>),
    /// A new group: its number, the rank there and the ranks.
    Group([u64; 3]),
    /// Who is to blame, and for what.
    Failed(usize, String),
    /// The run is lost and this rank has not noticed: of no call.
    Overdue(usize, String),
}

/// Bytes of an element.
pub(super) fn width(dtype: FloatDType) -> usize {
    DType::from(dtype).size()
}

/// Elements as a tensor's data, in memory that is laid out for them.
pub(super) fn flat(bytes: &[u8], dtype: FloatDType) -> TensorData {
    macro_rules! elements {
        ($element:ty) => {{
            let whole = bytes.as_chunks().0.iter();
            let elements: Vec<$element> = whole.map(|b| <$element>::from_le_bytes(*b)).collect();
            let len = elements.len();
            TensorData::new(elements, [len])
        }};
    }
    match dtype {
        FloatDType::F64 => elements!(f64),
        FloatDType::BF16 => elements!(half::bf16),
        FloatDType::F16 => elements!(half::f16),
        _ => elements!(f32),
    }
}

/// Bytes that come with a call of a rank, as its group counts it.
pub(super) fn expected(call: &Call, rank: usize) -> usize {
    match call.verb {
        Verb::Broadcast { root } if root != rank => 0,
        _ => whole(call),
    }
}

fn whole(call: &Call) -> usize {
    call.len.saturating_mul(width(call.dtype))
}

impl Request {
    pub(super) fn write(&self, mut to: impl Write) -> io::Result<()> {
        let mut frame = self.group.to_le_bytes().to_vec();
        frame.extend(
            self.header
                .encode()
                .iter()
                .flat_map(|word| word.to_le_bytes()),
        );
        send(&mut to, frame, &self.bytes)
    }

    /// The next request. Whether all elements of a call have to be there is for the group to say, which knows the rank's number in it.
    ///
    /// # Errors
    ///
    /// Those of the connection; [`io::ErrorKind::InvalidData`] for what no rank of this version sends.
    pub(super) fn read(mut from: impl Read) -> io::Result<Self> {
        let group = number(&mut from)?;
        let mut words: Words = [0; 4];
        for word in &mut words {
            *word = number(&mut from)?;
        }
        let header = Header::decode(words).ok_or(io::ErrorKind::InvalidData)?;
        let bytes = body(&mut from)?;
        match &header {
            Header::Call(call) if !bytes.is_empty() && bytes.len() != whole(call) => {
                Err(io::ErrorKind::InvalidData.into())
            }
            _ => Ok(Self {
                group,
                header,
                bytes,
            }),
        }
    }
}

impl Answer {
    pub(super) fn write(&self, mut to: impl Write) -> io::Result<()> {
        let mut head = self.group.to_le_bytes().to_vec();
        head.extend(self.sequence.to_le_bytes());
        let blamed = |rank: &usize, reason: &str| {
            let mut body = (*rank as u64).to_le_bytes().to_vec();
            body.extend(reason.as_bytes());
            body
        };
        let (code, body) = match &self.outcome {
            Outcome::Elements(bytes) => {
                head.extend(0u64.to_le_bytes());
                return send(&mut to, head, bytes);
            }
            Outcome::Group(numbers) => (1, numbers.iter().flat_map(|n| n.to_le_bytes()).collect()),
            Outcome::Failed(rank, reason) => (2, blamed(rank, reason)),
            Outcome::Overdue(rank, reason) => (3u64, blamed(rank, reason)),
        };
        head.extend(code.to_le_bytes());
        send(&mut to, head, &body)
    }

    /// # Errors
    ///
    /// As [`Request::read`].
    pub(super) fn read(mut from: impl Read) -> io::Result<Self> {
        let (group, sequence) = (number(&mut from)?, number(&mut from)?);
        let code = number(&mut from)?;
        let bytes = body(&mut from)?;
        let numbers: Vec<u64> = bytes
            .as_chunks()
            .0
            .iter()
            .map(|b| u64::from_le_bytes(*b))
            .collect();
        let blamed = || {
            let rank = numbers
                .first()
                .copied()
                .and_then(|rank| usize::try_from(rank).ok());
            let rank = rank.ok_or(io::ErrorKind::InvalidData)?;
            Ok::<_, io::Error>((rank, String::from_utf8_lossy(&bytes[8..]).into_owned()))
        };
        let outcome = match (code, numbers.as_slice()) {
            (0, _) => Outcome::Elements(bytes),
            (1, [group, rank, ranks]) => Outcome::Group([*group, *rank, *ranks]),
            (2, _) => blamed().map(|(rank, reason)| Outcome::Failed(rank, reason))?,
            (3, _) => blamed().map(|(rank, reason)| Outcome::Overdue(rank, reason))?,
            _ => return Err(io::ErrorKind::InvalidData.into()),
        };
        Ok(Self {
            group,
            sequence,
            outcome,
        })
    }
}

/// Says who this rank is.
pub(super) fn greet(mut stream: &TcpStream, word: &[u8], rank: usize) -> io::Result<()> {
    stream.set_nodelay(true)?;
    send(&mut stream, (rank as u64).to_le_bytes().to_vec(), word)
}

/// The rank that has connected, if it knows the word and says so in time.
pub(super) fn greeted(mut stream: &TcpStream, word: &[u8], within: Duration) -> Option<usize> {
    stream.set_nonblocking(false).ok()?;
    stream.set_nodelay(true).ok()?;
    stream.set_read_timeout(Some(within)).ok()?;
    let mut head = [0; 16];
    stream.read_exact(&mut head).ok()?;
    let rank = u64::from_le_bytes(head[..8].try_into().ok()?);
    let len = u64::from_le_bytes(head[8..].try_into().ok()?);
    // Nothing is made room for that a stranger announces.
    let mut own = vec![0; word.len()];
    if len != word.len() as u64 {
        return None;
    }
    stream.read_exact(&mut own).ok()?;
    stream.set_read_timeout(None).ok()?;
    (own == word).then_some(usize::try_from(rank).ok()?)
}

/// Sends a head, the length of a body, and the body.
fn send(to: &mut impl Write, mut head: Vec<u8>, body: &[u8]) -> io::Result<()> {
    head.extend((body.len() as u64).to_le_bytes());
    to.write_all(&head)?;
    to.write_all(body)?;
    to.flush()
}

fn number(from: &mut impl Read) -> io::Result<u64> {
    let mut bytes = [0; 8];
    from.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// A body, for which memory is taken as it comes.
fn body(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let len = number(from)?;
    let mut bytes = Vec::new();
    let got = from.take(len).read_to_end(&mut bytes)?;
    match got as u64 == len {
        true => Ok(bytes),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(verb: Verb, len: usize) -> Header {
        let dtype = FloatDType::BF16;
        Header::Call(Call { verb, len, dtype })
    }

    #[test]
    fn what_is_sent_is_read() {
        let requests = [
            (call(Verb::AllReduce, 3), vec![1, 2, 3, 4, 5, 6]),
            (call(Verb::Broadcast { root: 2 }, 3), vec![]),
            (Header::Split { color: 5, tag: 0 }, vec![]),
            (Header::Left, b"why".to_vec()),
        ];
        for (header, bytes) in requests {
            let request = Request {
                group: 7,
                header,
                bytes,
            };
            let mut sent = Vec::new();
            request.write(&mut sent).unwrap();
            assert_eq!(Request::read(sent.as_slice()).unwrap(), request);
            assert!(Request::read(&sent[..sent.len() - 1]).is_err());
        }
        for outcome in [
            Outcome::Elements(vec![1, 2, 3]),
            Outcome::Group([1, 2, 3]),
            Outcome::Failed(4, "panicked: lost".into()),
            Outcome::Overdue(0, String::new()),
        ] {
            let answer = Answer {
                group: 1,
                sequence: 9,
                outcome,
            };
            let mut sent = Vec::new();
            answer.write(&mut sent).unwrap();
            assert_eq!(Answer::read(sent.as_slice()).unwrap(), answer);
        }
    }

    #[test]
    fn a_length_that_is_not_the_calls_is_refused() {
        let mut sent = Vec::new();
        let request = Request {
            group: 0,
            header: call(Verb::AllGather, 1 << 60),
            bytes: vec![0; 8],
        };
        request.write(&mut sent).unwrap();
        let error = Request::read(sent.as_slice()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        // A body that never comes takes no memory.
        let at = sent.len() - 16;
        sent[at..at + 8].copy_from_slice(&u64::MAX.to_le_bytes());
        let error = Request::read(sent.as_slice()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn elements_keep_their_bits() {
        let numbers = [1.5f32, -0.0, f32::MIN_POSITIVE];
        let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        let data = flat(&bytes, FloatDType::F32);
        assert_eq!(data.as_slice::<f32>().unwrap(), numbers);
        assert_eq!(data.as_bytes(), bytes);
        assert_eq!(flat(&bytes, FloatDType::F16).num_elements(), 6);
    }
}
