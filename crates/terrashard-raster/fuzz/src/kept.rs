//! The inputs that are kept: files in `seeds/` and `findings/`, and many in one file of `corpora/`.

use std::fs;
use std::path::Path;

/// Runs over all inputs under these names, and says how many there were.
pub fn each(fuzz: &Path, names: &[&str], attempt: impl Fn(&[u8])) -> usize {
    let mut inputs = 0;
    let mut run = |bytes: &[u8], told: String| {
        println!("{told}");
        attempt(bytes);
        inputs += 1;
    };
    for name in names {
        for kind in ["seeds", "findings"] {
            let Ok(files) = fs::read_dir(fuzz.join(kind).join(name)) else {
                continue;
            };
            for file in files {
                let path = file.expect("listed").path();
                run(&fs::read(&path).expect("reads"), path.display().to_string());
            }
        }
        let packed = fuzz.join("corpora").join(format!("{name}.inputs"));
        let packed = fs::read(packed).unwrap_or_default();
        let (mut rest, mut number) = (&packed[..], 0);
        // Each behind its length.
        while let Some((length, behind)) = rest.split_first_chunk() {
            let length = u32::from_le_bytes(*length) as usize;
            let (input, after) = behind.split_at(length);
            run(input, format!("{name}.inputs, input {number}"));
            (rest, number) = (after, number + 1);
        }
    }
    inputs
}
