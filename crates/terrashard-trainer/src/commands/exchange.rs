//! `export` and `import`.

use super::document;
use crate::arguments::{ExportArguments, ImportArguments};
use crate::console::{print, tell};
use crate::error::Result;
use crate::export::{Export, Weights};
use crate::import::{ImportOptions, Imported};
use crate::record::counted;
use crate::{export, import};

pub(super) fn export(arguments: &ExportArguments) -> Result<()> {
    let weights = match arguments.ema {
        true => Weights::Ema,
        false => Weights::Plain,
    };
    let wanted = Export {
        weights,
        dtype: arguments.dtype.map(Into::into),
    };
    let exported = export::export(&arguments.checkpoint, &arguments.output, wanted)?;
    let tensors = counted(exported.matched.len(), "tensor");
    print(&match arguments.json {
        true => document(&exported),
        false => format!("{}: {tensors}\n", exported.file.display()),
    })
}

pub(super) fn import(arguments: ImportArguments) -> Result<()> {
    let ImportArguments {
        source,
        from,
        output,
        bands,
        allow_partial,
        json,
    } = arguments;
    let imported = import::import(&ImportOptions {
        origin: from.into(),
        source,
        output,
        bands,
        allow_partial,
    })?;
    for warning in &imported.warnings {
        tell(&format!("warning: {warning}"));
    }
    print(&match json {
        true => document(&imported),
        false => import_table(&imported),
    })
}

fn import_table(imported: &Imported) -> String {
    let matched = counted(imported.matched.len(), "tensor");
    let mut lines = vec![format!("{}: {matched}", imported.file.display())];
    lines.extend(imported.bands.iter().map(|rule| format!("bands: {rule}")));
    let epsilons = [
        ("layer_norm_eps", Some(imported.model.layer_norm_eps)),
        ("embed_norm_eps", imported.model.embed_norm_eps),
        ("attn_norm_eps", imported.model.attn_norm_eps),
    ];
    let epsilons = epsilons
        .iter()
        .filter_map(|(key, epsilon)| Some((key, (*epsilon)?)));
    lines.extend(epsilons.map(|(key, epsilon)| format!("model.{key} = {epsilon:e}")));
    for (what, names) in [
        ("missing in the source", &imported.missing),
        ("unexpected in the source", &imported.unexpected),
    ] {
        lines.extend(names.iter().map(|name| format!("{what}: {name}")));
    }
    lines.join("\n") + "\n"
}
