//! Codes of errors: what stands in brackets behind a message, the same in every version, and what is known of each.
//!
//! A code is the name of the crate and of the variant of its error, `raster::Truncated`. The table is generated from the crates'
//! sources and `explanation/remedies.txt`, `cargo xtask reference`.

use std::fmt;

use crate::error::Error;

const TABLE: &str = include_str!("explanation/codes.txt");

/// What is wrong with a command line has no variant.
pub const USAGE: &str = "usage";

/// What is known of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Its code.
    pub code: &'static str,
    /// What has happened.
    pub cause: &'static str,
    /// The message, with the names of what is filled in.
    pub message: &'static str,
    /// What to do.
    pub remedy: &'static str,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            code,
            cause,
            message,
            remedy,
        } = self;
        writeln!(
            f,
            "{code}\n\ncause:   {cause}\nremedy:  {remedy}\nmessage: {message}"
        )
    }
}

/// Those of all codes, sorted.
pub fn all() -> impl Iterator<Item = Explanation> {
    TABLE.lines().filter_map(|line| {
        let mut parts = line.split('\t');
        Some(Explanation {
            code: parts.next()?,
            cause: parts.next()?,
            message: parts.next()?,
            remedy: parts.next()?,
        })
    })
}

/// That of a code, however its letters are written.
///
/// # Errors
/// [`Error::InvalidValue`] for a code that there is not, with the most similar one.
pub fn of(code: &str) -> Result<Explanation, Error> {
    let found = all().find(|explanation| explanation.code.eq_ignore_ascii_case(code));
    found.ok_or_else(|| {
        let distance = |other: &Explanation| {
            strsim::damerau_levenshtein(&code.to_lowercase(), &other.code.to_lowercase())
        };
        let nearest = all()
            .min_by_key(distance)
            .map_or("", |nearest| nearest.code);
        Error::invalid(
            "CODE",
            code,
            format!("a code such as `{nearest}`; `terrashard explain` lists all"),
        )
    })
}

/// The code of an error: that of the crate in which it arose.
pub fn code(error: &Error) -> String {
    match error {
        Error::Rank { source, .. } | Error::Step { source, .. } => code(source),
        Error::Data(terrashard_data::Error::Raster(source)) | Error::Raster(source) => {
            named("raster", source)
        }
        Error::Data(source) => named("data", source),
        Error::Model(source) | Error::Import { source, .. } => named("models", source),
        Error::Layout(source) | Error::Zero(terrashard_zero::Error::Layout { source }) => {
            named("layout", source)
        }
        Error::Collective(source) | Error::Zero(terrashard_zero::Error::Collective { source }) => {
            named("collectives", source)
        }
        Error::Zero(source) => named("zero", source),
        Error::Checkpoint(source) | Error::Save { source } => named("checkpoint", source),
        own => named("trainer", own),
    }
}

/// The variant's name is the first word that every error of ours shows of itself.
pub(crate) fn named(from: &str, error: &impl fmt::Debug) -> String {
    let shown = format!("{error:?}");
    let variant = shown
        .split(|letter: char| !letter.is_alphanumeric())
        .next()
        .unwrap_or_default();
    format!("{from}::{variant}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_the_code_of_where_it_arose() {
        let check = |error: Error, expected: &str| {
            assert_eq!(code(&error), expected);
            assert_eq!(of(expected).map(|found| found.code).ok(), Some(expected));
        };
        let rank = |source| Error::Rank {
            rank: 1,
            source: Box::new(source),
        };
        check(Error::NoGpu, "trainer::NoGpu");
        check(
            rank(rank(Error::Problems { count: 1 })),
            "trainer::Problems",
        );
        check(Error::LibTorch("no".into()), "trainer::LibTorch");
        let absent = || terrashard_raster::Error::NotFound {
            path: "a.tif".into(),
        };
        check(absent().into(), "raster::NotFound");
        check(
            terrashard_data::Error::Raster(absent()).into(),
            "raster::NotFound",
        );
        check(
            terrashard_data::Error::LoaderPanicked.into(),
            "data::LoaderPanicked",
        );
        let ranks = || terrashard_layout::Error::NoRanks;
        check(
            rank(terrashard_zero::Error::from(ranks()).into()),
            "layout::NoRanks",
        );
        check(terrashard_zero::Error::Detached.into(), "zero::Detached");
    }

    #[test]
    fn every_code_is_explained_once() {
        let codes: Vec<_> = all().map(|explanation| explanation.code).collect();
        let mut sorted = codes.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(codes, sorted);
        assert_eq!(
            codes.len(),
            TABLE.lines().count(),
            "every line has its four parts"
        );
        assert!(codes.contains(&USAGE) && codes.len() > 100);
        for explanation in all() {
            let Explanation { cause, remedy, .. } = explanation;
            assert!(cause.ends_with('.') && cause.len() > 1, "{explanation}");
            assert!(remedy.ends_with('.') && remedy.len() > 10, "{explanation}");
        }
    }

    #[test]
    fn a_code_that_is_none_is_told_with_the_nearest() {
        let message = of("raster::Truncatd").unwrap_err().to_string();
        assert!(message.contains("`raster::Truncated`"), "{message}");
        assert_eq!(of("RASTER::truncated").unwrap().code, "raster::Truncated");
    }
}
