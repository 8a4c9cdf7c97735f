//! A small web server with ranges and faults, for one test.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// How the server answers what is asked of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// Ranges, as it should be.
    Ranges,
    /// The whole file, whatever range is asked for.
    Whole,
    /// This status and a text that repeats the request.
    Status(u16),
    /// 503 for the first this many requests of each range.
    Busy(usize),
    /// The connection is closed in the middle of the first this many answers of each range.
    Cut(usize),
    /// Parts of 1000 bytes with a moment between them.
    Slow,
    /// Nothing comes after the first half.
    Stalled,
    /// This many bytes more or less than the range has.
    Length(i64),
    /// Another length of the file from the second request on.
    Replaced,
    /// Only with this header or, where it has no colon, only with this in the query.
    Guarded(&'static str),
}

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) line: String,
    pub(crate) headers: Vec<String>,
    pub(crate) range: Range<usize>,
}

#[derive(Default)]
struct State {
    files: HashMap<String, (Manner, Vec<u8>)>,
    requests: Vec<Request>,
    /// Bytes of bodies that were sent.
    sent: usize,
}

/// Listens until the test ends.
pub(crate) struct Server {
    pub(crate) address: String,
    state: Arc<Mutex<State>>,
}

impl Server {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let state = Arc::<Mutex<State>>::default();
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                // The client may go at any time.
                thread::spawn(move || drop(serve(stream, &state)));
            }
        });
        Self { address, state }
    }

    /// Serves a file under `/NAME`; its address.
    pub(crate) fn put(&self, name: &str, manner: Manner, bytes: Vec<u8>) -> PathBuf {
        let mut state = self.state.lock().expect("whole");
        state.files.insert(format!("/{name}"), (manner, bytes));
        PathBuf::from(format!("http://{}/{name}", self.address))
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.state.lock().expect("whole").requests.clone()
    }

    pub(crate) fn sent(&self) -> usize {
        self.state.lock().expect("whole").sent
    }
}

fn serve(stream: TcpStream, state: &Mutex<State>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut stream = stream;
    loop {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            match line.trim_end() {
                "" => break,
                line => lines.push(line.to_owned()),
            }
        }
        answer(&mut stream, &lines, state)?;
    }
}

fn answer(stream: &mut TcpStream, lines: &[String], state: &Mutex<State>) -> std::io::Result<()> {
    let target = lines[0].split(' ').nth(1).unwrap_or_default().to_owned();
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let Some((manner, bytes)) = state.lock().expect("whole").files.get(path).cloned() else {
        return refuse(stream, 404, &target);
    };
    let header = |name: &str| {
        let named = |line: &&String| line.to_lowercase().starts_with(&format!("{name}: "));
        lines[1..]
            .iter()
            .find(named)
            .map(|line| line[name.len() + 2..].to_owned())
    };
    let range = header("range").and_then(|text| {
        let (from, to) = text.strip_prefix("bytes=")?.split_once('-')?;
        let to: usize = to.parse().ok()?;
        Some(from.parse().ok()?..(to + 1).min(bytes.len()))
    });
    let range: Range<usize> = range.unwrap_or(0..bytes.len());
    let before = {
        let mut state = state.lock().expect("whole");
        let before = state.requests.iter();
        let of_path = before.filter(|r| r.line.contains(&format!("{path} ")));
        let before = (
            of_path.clone().count(),
            of_path.filter(|r| r.range == range).count(),
        );
        state.requests.push(Request {
            line: lines[0].clone(),
            headers: lines[1..].to_vec(),
            range: range.clone(),
        });
        before
    };
    if range.is_empty() {
        return refuse(stream, 416, &target);
    }
    let part = &bytes[range.clone()];
    match manner {
        Manner::Status(status) => return refuse(stream, status, &target),
        Manner::Busy(times) if before.1 < times => return refuse(stream, 503, &target),
        Manner::Guarded(what) if !what.contains(':') && !query.contains(what) => {
            return refuse(stream, 403, &target);
        }
        Manner::Guarded(what)
            if what.contains(':') && !lines.iter().any(|line| line.eq_ignore_ascii_case(what)) =>
        {
            return refuse(stream, 401, &target);
        }
        Manner::Whole => {
            write!(
                stream,
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n",
                bytes.len()
            )?;
            return send(stream, &bytes, state);
        }
        _ => {}
    }
    let total = match manner {
        Manner::Replaced if before.0 > 0 => bytes.len() + 1,
        _ => bytes.len(),
    };
    write!(
        stream,
        "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {}-{}/{total}\r\n",
        range.start,
        range.end - 1
    )?;
    let mut part = part.to_vec();
    if let Manner::Length(more) = manner {
        part.resize((part.len() as i64 + more) as usize, 0);
    }
    write!(stream, "Content-Length: {}\r\n\r\n", part.len())?;
    match manner {
        Manner::Cut(times) if before.1 < times => {
            send(stream, &part[..part.len() / 2], state)?;
            stream.shutdown(std::net::Shutdown::Both)
        }
        Manner::Stalled => {
            send(stream, &part[..part.len() / 2], state)?;
            // Until the client has lost its patience.
            stream.read_exact(&mut [0; 1])
        }
        Manner::Slow => part.chunks(1000).try_for_each(|some| {
            thread::sleep(Duration::from_millis(1));
            send(stream, some, state)
        }),
        _ => send(stream, &part, state),
    }
}

fn send(stream: &mut TcpStream, bytes: &[u8], state: &Mutex<State>) -> std::io::Result<()> {
    state.lock().expect("whole").sent += bytes.len();
    stream.write_all(bytes)
}

fn refuse(stream: &mut TcpStream, status: u16, target: &str) -> std::io::Result<()> {
    let text = format!("<Error>{target}</Error>");
    write!(
        stream,
        "HTTP/1.1 {status} No\r\nContent-Length: {}\r\n\r\n{text}",
        text.len()
    )
}
