//! What travels between a rank and the store.

use std::io::{self, Read, Write};

/// Bytes of a key at most.
pub(super) const KEY: usize = 128;

/// Bytes of a value at most.
pub(super) const VALUE: usize = 64 << 10;

/// The bytes `tstore` and a version, which all ranks have to share.
pub(super) const MARK: [u8; 8] = *b"tstore\x01\x00";

/// What a rank asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Request {
    /// Who is there, in a run of how many. Comes first.
    Hello { rank: u32, ranks: u32 },
    /// Write a value.
    Set { key: String, value: Vec<u8> },
    /// Write a value unless there is one. The answer is the one that holds.
    Propose { key: String, value: Vec<u8> },
    /// Read a value, and wait for it for some milliseconds.
    Get { key: String, within: u32 },
    /// Forget a value.
    Remove { key: String },
    /// The rank will end.
    Farewell,
    /// How many ranks have said farewell or are gone.
    Ended,
}

/// What the store answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    /// Done, with a value where one was asked for.
    Done(Vec<u8>),
    /// There is no such value.
    Absent,
    /// It is not done, and why.
    Refused(String),
}

impl Request {
    pub(super) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let (code, key, value): (u8, &str, &[u8]) = match self {
            Self::Hello { rank, ranks } => {
                let mut bytes = MARK.to_vec();
                bytes.extend(rank.to_le_bytes());
                bytes.extend(ranks.to_le_bytes());
                return frame(to, 0, "", &bytes);
            }
            Self::Set { key, value } => (1, key, value),
            Self::Propose { key, value } => (2, key, value),
            Self::Get { key, within } => return frame(to, 3, key, &within.to_le_bytes()),
            Self::Remove { key } => (4, key, &[]),
            Self::Farewell => (5, "", &[]),
            Self::Ended => (6, "", &[]),
        };
        frame(to, code, key, value)
    }

    /// The next request.
    ///
    /// # Errors
    ///
    /// Those of the connection, and [`io::ErrorKind::InvalidData`] for what no rank sends.
    pub(super) fn read(from: &mut impl Read) -> io::Result<Self> {
        let mut head = [0; 6];
        from.read_exact(&mut head)?;
        let key = usize::from(head[1]);
        let len = u32::from_le_bytes([head[2], head[3], head[4], head[5]]) as usize;
        if key > KEY || len > VALUE {
            return Err(invalid());
        }
        let key = String::from_utf8(bytes(from, key)?).map_err(|_| invalid())?;
        let value = bytes(from, len)?;
        let number = |at: usize| {
            let bytes = value.get(at..at + 4).and_then(|four| four.try_into().ok());
            bytes.map(u32::from_le_bytes).ok_or_else(invalid)
        };
        Ok(match head[0] {
            0 if value.len() == 16 && value[..8] == MARK => Self::Hello {
                rank: number(8)?,
                ranks: number(12)?,
            },
            1 => Self::Set { key, value },
            2 => Self::Propose { key, value },
            3 => Self::Get {
                key,
                within: number(0)?,
            },
            4 => Self::Remove { key },
            5 => Self::Farewell,
            6 => Self::Ended,
            _ => return Err(invalid()),
        })
    }
}

impl Answer {
    pub(super) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        match self {
            Self::Done(value) => frame(to, 0, "", value),
            Self::Absent => frame(to, 1, "", &[]),
            Self::Refused(reason) => frame(to, 2, "", reason.as_bytes()),
        }
    }

    /// The next answer.
    ///
    /// # Errors
    ///
    /// As of [`Request::read`].
    pub(super) fn read(from: &mut impl Read) -> io::Result<Self> {
        let mut head = [0; 6];
        from.read_exact(&mut head)?;
        let len = u32::from_le_bytes([head[2], head[3], head[4], head[5]]) as usize;
        if head[1] != 0 || len > VALUE {
            return Err(invalid());
        }
        let value = bytes(from, len)?;
        match head[0] {
            0 => Ok(Self::Done(value)),
            1 => Ok(Self::Absent),
            2 => Ok(Self::Refused(String::from_utf8_lossy(&value).into_owned())),
            _ => Err(invalid()),
        }
    }
}

/// One write, so that a frame is one packet.
fn frame(to: &mut impl Write, code: u8, key: &str, value: &[u8]) -> io::Result<()> {
    let (Ok(key_len), Ok(len)) = (u8::try_from(key.len()), u32::try_from(value.len())) else {
        return Err(invalid());
    };
    if key.len() > KEY || value.len() > VALUE {
        return Err(invalid());
    }
    let mut frame = Vec::with_capacity(6 + key.len() + value.len());
    frame.push(code);
    frame.push(key_len);
    frame.extend(len.to_le_bytes());
    frame.extend(key.as_bytes());
    frame.extend(value);
    to.write_all(&frame)
}

fn bytes(from: &mut impl Read, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn invalid() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "what the other side sends is no message of a store",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_is_read() {
        let key = || "g/0/1".to_owned();
        let value = vec![0, 1, 255];
        let requests = [
            Request::Hello {
                rank: 3,
                ranks: 70_000,
            },
            Request::Set {
                key: key(),
                value: value.clone(),
            },
            Request::Propose {
                key: key(),
                value: vec![],
            },
            Request::Get {
                key: key(),
                within: u32::MAX,
            },
            Request::Remove { key: key() },
            Request::Farewell,
            Request::Ended,
        ];
        for request in requests {
            let mut sent = Vec::new();
            request.write(&mut sent).unwrap();
            assert_eq!(Request::read(&mut sent.as_slice()).unwrap(), request);
        }
        for answer in [
            Answer::Done(value),
            Answer::Absent,
            Answer::Refused("full".into()),
        ] {
            let mut sent = Vec::new();
            answer.write(&mut sent).unwrap();
            assert_eq!(Answer::read(&mut sent.as_slice()).unwrap(), answer);
        }
    }

    #[test]
    fn strangers_get_no_memory() {
        let refused = |bytes: &[u8]| {
            let error = Request::read(&mut &*bytes).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{bytes:?}");
            let error = Answer::read(&mut &*bytes).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{bytes:?}");
        };
        refused(b"GET / HTTP/1.1\r\n\r\n");
        refused(&[1, 200, 0, 0, 0, 0]);
        refused(&[1, 1, 0xff, 0xff, 0xff, 0xff]);
        refused(&[9, 0, 0, 0, 0, 0]);
        let mut hello = Vec::new();
        let request = Request::Hello { rank: 0, ranks: 1 };
        request.write(&mut hello).unwrap();
        hello[6] ^= 1;
        assert!(Request::read(&mut hello.as_slice()).is_err());
        let long = Request::Remove {
            key: "k".repeat(KEY + 1),
        };
        assert!(long.write(&mut Vec::new()).is_err());
    }
}
