//! Scenes on a web server read like the same files here, by ranges, and every fault of the server is one line.
#![cfg(feature = "cloud")]

mod server;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use server::{Manner, Server};
use terrashard_raster::{
    DataType, Error, GeoTiffSink, Raster, RasterSink, RasterSource, RasterSpec, ReadLimits,
    Samples, Window, keep_credentials, open, open_with, summarize,
};

fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name)
}

fn patient(milliseconds: u64) -> ReadLimits {
    ReadLimits {
        patience: Duration::from_millis(milliseconds),
        ..ReadLimits::default()
    }
}

/// Values that no codec makes smaller.
fn noise(count: usize) -> Vec<u16> {
    let mut state = 1_u64;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 48) as u16
    };
    (0..count).map(|_| next()).collect()
}

/// A COG of 1536 x 1536 pixels in nine tiles of half a megabyte each, with its samples.
fn cog(folder: &Path) -> (PathBuf, Vec<u16>) {
    let path = folder.join("cog.tif");
    let samples = noise(1536 * 1536);
    let mut sink =
        GeoTiffSink::create(&path, RasterSpec::new(1536, 1536, 1, DataType::U16)).expect("made");
    let whole = Window::new(0, 0, 1536, 1536);
    sink.write(&Raster::new(whole, 1, Samples::U16(samples.clone())).expect("fits"))
        .expect("written");
    Box::new(sink).finish().expect("finished");
    (path, samples)
}

fn all(source: &dyn RasterSource) -> Raster {
    source
        .read_window(source.metadata().window())
        .expect("reads")
}

/// Bit by bit: a NaN is no value that equals itself.
fn bits(raster: &Raster) -> Vec<u64> {
    let samples = raster.samples();
    (0..samples.len())
        .map(|at| samples.get(at).to_bits())
        .collect()
}

/// What opening or reading a scene in this manner says.
fn fault(manner: Manner, limits: ReadLimits) -> (String, Server) {
    let server = Server::start();
    let bytes = std::fs::read(data("rio_all_nodata.tif")).expect("the file");
    let address = server.put("scene.tif", manner, bytes);
    let read = |source: Box<dyn RasterSource>| source.read_window(source.metadata().window());
    let error = open_with(&address, limits)
        .and_then(read)
        .expect_err("the server has a fault");
    let line = error.to_string();
    assert!(matches!(error, Error::Remote { .. }), "{error:?}");
    assert!(!line.contains('\n'), "{line}");
    let named = format!("{}: bytes 0 to ", address.display());
    assert!(line.starts_with(&named), "{line}");
    (line, server)
}

#[test]
fn every_file_of_the_corpus_reads_like_the_same_file_here() {
    let server = Server::start();
    let text = std::fs::read_to_string(data("expected.json")).expect("expected.json");
    let expected: Vec<Value> = serde_json::from_str(&text).expect("a list");
    let mut read = 0;
    for entry in &expected {
        let file = entry["file"].as_str().expect("a name");
        let Ok(bytes) = std::fs::read(data(file)) else {
            continue;
        };
        if data(&format!("{file}.msk")).exists() {
            continue;
        }
        let address = server.put(file, Manner::Ranges, bytes);
        match (open(data(file)), open(&address)) {
            (Ok(here), Ok(there)) => {
                assert_eq!(here.metadata(), there.metadata(), "{file}");
                assert_eq!(
                    format!("{:?}", here.annotations()),
                    format!("{:?}", there.annotations()),
                    "{file}"
                );
                assert_eq!(there.path(), address);
                let window = here.metadata().window();
                match (here.read_window(window), there.read_window(window)) {
                    (Ok(ours), Ok(theirs)) => {
                        assert_eq!(bits(&ours), bits(&theirs), "{file}");
                        read += 1;
                    }
                    (Err(_), Err(error)) => {
                        assert!(error.to_string().contains(file), "{error}");
                        continue;
                    }
                    (ours, theirs) => panic!("{file}: {ours:?} and {theirs:?}"),
                }
                let (ours, theirs) = (here.read_mask(window), there.read_mask(window));
                assert_eq!(ours.expect("reads"), theirs.expect("reads"), "{file}");
                for level in 0..here.metadata().overviews.len() {
                    let of = |source: &dyn RasterSource| {
                        let level = source.overview(level).expect("opens").expect("is there");
                        bits(&all(&*level))
                    };
                    assert_eq!(of(&*here), of(&*there), "{file}: overview {level}");
                }
            }
            (Err(_), Err(error)) => assert!(error.to_string().contains(file), "{error}"),
            (here, there) => panic!("{file}: {:?} and {:?}", here.err(), there.err()),
        }
    }
    assert!(read > 20, "{read} files were read");
}

#[test]
fn only_the_directories_and_the_tiles_of_a_window_are_asked_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, samples) = cog(folder.path());
    let bytes = std::fs::read(&path).expect("the file");
    let (stored, tile) = (bytes.len(), 512 * 512 * 2);
    assert!(stored > 9 * tile, "noise does not pack");
    let server = Server::start();
    let source = open(server.put("cog.tif", Manner::Ranges, bytes)).expect("opens");
    assert!(server.sent() <= 64 << 10, "{} bytes to open", server.sent());
    assert_eq!(server.requests().len(), 1);
    // In one tile, read twice: its samples are kept.
    for _ in 0..2 {
        let got = source
            .read_window(Window::new(600, 520, 64, 32))
            .expect("reads");
        let wanted = (520..552).flat_map(|row| samples[row * 1536 + 600..][..64].to_vec());
        assert_eq!(got.samples(), &Samples::U16(wanted.collect()));
    }
    assert_eq!(server.requests().len(), 2);
    let most = (64 << 10) + tile + tile / 50;
    assert!(server.sent() <= most, "{} bytes of {stored}", server.sent());
}

#[test]
fn a_transfer_that_is_cut_or_refused_for_a_while_is_asked_for_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, samples) = cog(folder.path());
    let bytes = std::fs::read(&path).expect("the file");
    for manner in [Manner::Cut(1), Manner::Busy(1), Manner::Slow] {
        let server = Server::start();
        let source = open(server.put("cog.tif", manner, bytes.clone())).expect("opens");
        let window = Window::new(0, 0, 8, 1);
        let got = source.read_window(window).expect("reads");
        assert_eq!(got.samples(), &Samples::U16(samples[..8].to_vec()));
        let tries = if manner == Manner::Slow { 2 } else { 4 };
        assert_eq!(server.requests().len(), tries, "{manner:?}");
    }
}

#[test]
fn faults_that_last_end_in_one_line_when_patience_ends() {
    for (manner, reason) in [
        (Manner::Cut(usize::MAX), "again and again for"),
        (Manner::Stalled, "again and again for"),
        (Manner::Length(-1), "bytes asked for, again and again for"),
        (Manner::Busy(usize::MAX), "the server answered 503"),
    ] {
        let (line, server) = fault(manner, patient(600));
        assert!(line.contains(reason), "{manner:?}: {line}");
        assert!((2..10).contains(&server.requests().len()), "{manner:?}");
    }
}

#[test]
fn faults_that_no_patience_helps_are_told_at_once() {
    for (manner, reason) in [
        (Manner::Status(404), "there is no such file (404)"),
        (Manner::Status(403), "access is denied (403)"),
        (
            Manner::Status(401),
            "credentials are missing or wrong (401)",
        ),
        (Manner::Status(418), "the server answered 418"),
        (Manner::Whole, "does not serve ranges of bytes; download"),
        (Manner::Length(1), "sent more than the"),
    ] {
        let (line, server) = fault(manner, ReadLimits::default());
        assert!(line.contains(reason), "{manner:?}: {line}");
        assert_eq!(server.requests().len(), 1, "{manner:?}");
    }
}

#[test]
fn a_file_that_is_replaced_while_it_is_read_is_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let bytes = std::fs::read(cog(folder.path()).0).expect("the file");
    let server = Server::start();
    let address = server.put("cog.tif", Manner::Replaced, bytes);
    let source = open(&address).expect("opens");
    let error = source
        .read_window(Window::new(0, 0, 1, 1))
        .expect_err("another file");
    let line = error.to_string();
    assert!(
        line.starts_with(&format!("{}: bytes ", address.display())),
        "{line}"
    );
    assert!(line.contains("bytes before and has"), "{line}");
}

#[test]
fn nobody_at_the_address_is_one_line() {
    let limits = patient(300);
    let error = open_with("http://127.0.0.1:1/scene.tif", limits).expect_err("nobody");
    let line = error.to_string();
    assert!(
        line.starts_with("http://127.0.0.1:1/scene.tif: bytes 0 to 65536: no connection: "),
        "{line}"
    );
}

/// `anna:p@ss/word` in base64; the password's signs stand as codes in the address.
const BASIC: &str = "authorization: Basic YW5uYTpwQHNzL3dvcmQ=";

#[test]
fn credentials_in_the_address_reach_the_server_and_nobody_else() {
    let server = Server::start();
    let bytes = std::fs::read(data("rio_all_nodata.tif")).expect("the file");
    for (manner, user, query, secrets) in [
        (
            Manner::Guarded(BASIC),
            "anna:p%40ss%2Fword@",
            "",
            ["p%40ss", "anna"],
        ),
        (
            Manner::Guarded("sig=aB%2Fc"),
            "",
            "?sv=2024&sig=aB%2Fc",
            ["aB%2Fc", "sv="],
        ),
    ] {
        server.put("scene.tif", manner, bytes.clone());
        let whole = PathBuf::from(format!("http://{user}{}/scene.tif{query}", server.address));
        let source = open(&whole).expect("the credentials reach the server");
        let summary = serde_json::to_string(&summarize(&source).expect("reads")).expect("JSON");
        let shown = [
            source.path().display().to_string(),
            format!("{source:?}"),
            summary,
        ];
        // By what is shown it opens again in this process.
        open(source.path()).expect("the credentials are known");
        let wrong = whole
            .to_string_lossy()
            .replace("p%40ss", "wrong1")
            .replace("aB%2F", "wrong2");
        server.put("gone", Manner::Ranges, Vec::new());
        let gone = whole.to_string_lossy().replace("scene.tif", "none.tif");
        let errors = [wrong, gone].map(|address| {
            let error = open(keep_credentials(address.into())).expect_err("refused");
            format!("{error} {error:?}")
        });
        for text in shown.iter().chain(&errors) {
            for secret in secrets.iter().chain(&["wrong1", "wrong2"]) {
                assert!(!text.contains(secret), "{secret} in {text}");
            }
        }
        assert!(shown[0].contains("***"), "{}", shown[0]);
    }
}

#[test]
fn an_address_that_was_written_down_without_its_credentials_says_so() {
    let error = open("https://***@example.invalid/scene.tif").expect_err("unknown");
    assert!(
        error.to_string().contains("give the whole address again"),
        "{error}"
    );
}

#[test]
fn formats_that_ranges_are_no_good_for_are_refused_by_name() {
    let server = Server::start();
    let jp2 = std::fs::read(data("water_B02.jp2")).expect("the file");
    for (name, bytes, reason) in [
        (
            "a.jp2",
            jp2,
            "any format but GeoTIFF from a URL is not supported; download",
        ),
        ("a.txt", b"<html>".to_vec(), "not a raster"),
    ] {
        let error = open(server.put(name, Manner::Ranges, bytes)).expect_err("refused");
        assert!(error.to_string().contains(reason), "{error}");
    }
}

/// Read by this test's own program, to which the environment is given.
#[test]
fn a_bucket_is_read_with_what_the_environment_holds() {
    const NAME: &str = "a_bucket_is_read_with_what_the_environment_holds";
    let here = open(data("rio_all_nodata.tif")).expect("opens");
    if std::env::var_os("AWS_ENDPOINT").is_some() {
        let there = open("s3://bucket/a/scene.tif").expect("opens");
        assert_eq!(here.metadata(), there.metadata());
        assert_eq!(bits(&all(&*here)), bits(&all(&*there)));
        let error = open("s3://bucket/a/none.tif").expect_err("none");
        assert!(
            error
                .to_string()
                .starts_with("s3://bucket/a/none.tif: bytes 0 to 65536: there is no such file"),
            "{error}"
        );
        return;
    }
    let server = Server::start();
    let bytes = std::fs::read(data("rio_all_nodata.tif")).expect("the file");
    server.put("bucket/a/scene.tif", Manner::Ranges, bytes);
    let output = std::process::Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", NAME, "--nocapture"])
        .env("AWS_ENDPOINT", format!("http://{}", server.address))
        .env("AWS_ALLOW_HTTP", "true")
        .env("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
        .env("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI")
        .env("AWS_REGION", "eu-central-1")
        .output()
        .expect("runs");
    let told = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    assert!(!told.contains("wJalrXUtnFEMI"), "{told}");
    let requests = server.requests();
    let signed = "authorization: AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/";
    assert!(!requests.is_empty());
    for request in requests {
        assert!(
            request.headers.iter().any(|line| line.starts_with(signed)),
            "{request:?}"
        );
    }
}
