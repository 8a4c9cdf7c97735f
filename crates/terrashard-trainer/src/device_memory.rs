//! What LibTorch says when the memory of a GPU is used up, in one line.

/// Sizes by what stands before or behind them in LibTorch's text.
const ASKED: &str = "Tried to allocate ";
const TOTAL: &str = "has a total capacity of ";
const FREE: &str = " of which ";
const ALLOWED: &str = " allowed";
const HELD: &str = " is allocated by PyTorch";
const KEPT: &str = " is reserved by PyTorch but unallocated";

/// The sizes of a message that tells of memory that is used up; `None` for any other message.
pub fn used_up(message: &str) -> Option<String> {
    if !message.contains("out of memory") {
        return None;
    }
    let asked = behind(message, ASKED);
    let limit = before(message, ALLOWED)
        .map(|allowed| format!("{allowed} are allowed"))
        .or_else(|| behind(message, TOTAL).map(|total| format!("the gpu has {total}")));
    let held = before(message, HELD).map(|held| format!("tensors hold {held}"));
    let kept = before(message, KEPT).map(|kept| format!("{kept} are kept in pieces"));
    let free = behind(message, FREE).map(|free| format!("{free} are free on the gpu"));
    let parts: Vec<String> = [limit, held, kept, free].into_iter().flatten().collect();
    let asked = asked.map_or_else(
        || "more was asked for".into(),
        |asked| format!("{asked} more were asked for"),
    );
    Some(match parts.is_empty() {
        true => asked,
        false => format!("{asked}, while {}", parts.join(", ")),
    })
}

/// A number with its unit behind a phrase.
fn behind(message: &str, phrase: &str) -> Option<String> {
    let rest = message.split_once(phrase)?.1;
    size(rest.split_whitespace().take(2))
}

/// A number with its unit before a phrase.
fn before(message: &str, phrase: &str) -> Option<String> {
    let rest = message.split_once(phrase)?.0;
    let words: Vec<&str> = rest.split_whitespace().rev().take(2).collect();
    size(words.into_iter().rev())
}

fn size<'a>(words: impl Iterator<Item = &'a str>) -> Option<String> {
    let words: Vec<&str> = words
        .map(|word| word.trim_end_matches(['.', ',', ';']))
        .collect();
    let [number, unit] = words[..] else {
        return None;
    };
    number.parse::<f64>().ok()?;
    matches!(unit, "bytes" | "KiB" | "MiB" | "GiB").then(|| format!("{number} {unit}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sizes_are_told_in_one_line() {
        let text = "called `Result::unwrap()` on an `Err` value: Torch(\"CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a \
                    total capacity of 139.80 GiB of which 120.01 GiB is free. Process 7 has 19.79 GiB memory in use. 16.00 GiB \
                    allowed; Of the allocated memory 14.20 GiB is allocated by PyTorch, and 512.00 MiB is reserved by PyTorch but \
                    unallocated. If reserved but unallocated memory is large try setting\\nException raised from malloc";
        assert_eq!(
            used_up(text).as_deref(),
            Some(
                "2.50 GiB more were asked for, while 16.00 GiB are allowed, tensors hold 14.20 GiB, 512.00 MiB are kept in pieces, \
                 120.01 GiB are free on the gpu"
            )
        );
        let without = "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 1 has a total capacity of 15.77 GiB of which 3.88 MiB is \
                       free. Of the allocated memory 15.1 GiB is allocated by PyTorch";
        assert_eq!(
            used_up(without).as_deref(),
            Some(
                "20.00 MiB more were asked for, while the gpu has 15.77 GiB, tensors hold 15.1 GiB, 3.88 MiB are free on the gpu"
            )
        );
        assert_eq!(
            used_up("out of memory").as_deref(),
            Some("more was asked for")
        );
        assert_eq!(used_up("index 3 out of bounds"), None);
    }
}
