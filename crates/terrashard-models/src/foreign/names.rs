//! What tensors of other projects are called here.

use super::Origin;

/// Which rows of a source's tensor a part is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rows {
    All,
    /// Of queries, keys and values in one tensor, the queries.
    FirstThird,
    /// Of those, keys and values.
    LastTwoThirds,
}

/// A part of one of our tensors; parts are put together by their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) name: String,
    pub(super) order: usize,
    /// How many make the whole.
    pub(super) of: usize,
    pub(super) rows: Rows,
}

/// What a tensor of the source is here; nothing if it has no counterpart.
pub(super) fn parts(origin: Origin, name: &str) -> Vec<Part> {
    let whole = |name: String| part(name, 0, Rows::All);
    match origin {
        Origin::HuggingFace => {
            let part = hugging_face(name).map(|(name, order)| Part {
                of: 1 + usize::from(name.contains(".attn.kv.")),
                ..part(name, order, Rows::All)
            });
            part.into_iter().collect()
        }
        Origin::Nvlabs => nvlabs(name).into_iter().map(whole).collect(),
        Origin::Mmseg => mmseg(name),
        Origin::Safetensors => {
            let own = name.starts_with("stages.") || name.starts_with("tail.");
            own.then(|| whole(name.into())).into_iter().collect()
        }
    }
}

fn part(name: String, order: usize, rows: Rows) -> Part {
    Part {
        name,
        order,
        of: 1,
        rows,
    }
}

/// The number at the beginning and what follows its dot.
fn numbered(text: &str) -> Option<(usize, &str)> {
    let (number, rest) = text.split_once('.')?;
    Some((number.parse().ok()?, rest))
}

/// Numbers from 1, here from 0.
fn from_one(text: &str) -> Option<(usize, &str)> {
    let (number, rest) = numbered(text)?;
    Some((number.checked_sub(1)?, rest))
}

/// The first of these beginnings that the text has, and what follows it, behind its replacement.
fn replaced(text: &str, beginnings: &[(&str, &str)]) -> Option<String> {
    beginnings.iter().find_map(|(from, to)| {
        let rest = text.strip_prefix(from)?;
        (rest.starts_with('.')).then(|| format!("{to}{rest}"))
    })
}

/// Transformers' SegFormer. Keys and values, two tensors there, are one here: hence the order.
fn hugging_face(name: &str) -> Option<(String, usize)> {
    if let Some(head) = name.strip_prefix("decode_head.") {
        let head = match head.strip_prefix("linear_c.").and_then(numbered) {
            Some((level, rest)) => format!("linear.{level}.{}", rest.strip_prefix("proj.")?),
            None => replaced(
                head,
                &[
                    ("linear_fuse", "fuse"),
                    ("batch_norm", "bn"),
                    ("classifier", "cls"),
                ],
            )?,
        };
        return Some((format!("tail.head.{head}"), 0));
    }
    let name = name.strip_prefix("segformer.").unwrap_or(name);
    let name = name.strip_prefix("encoder.")?;
    if let Some((stage, rest)) = name.strip_prefix("patch_embeddings.").and_then(numbered) {
        let rest = replaced(rest, &[("proj", "embed"), ("layer_norm", "embed_norm")])?;
        return Some((format!("stages.{stage}.{rest}"), 0));
    }
    if let Some((stage, rest)) = name.strip_prefix("layer_norm.").and_then(numbered) {
        return Some((format!("stages.{stage}.norm.{rest}"), 0));
    }
    let (stage, rest) = name.strip_prefix("block.").and_then(numbered)?;
    let (block, rest) = numbered(rest)?;
    let order = usize::from(rest.starts_with("attention.self.value."));
    let rest = replaced(
        rest,
        &[
            ("layer_norm_1", "norm1"),
            ("layer_norm_2", "norm2"),
            ("attention.self.query", "attn.q"),
            ("attention.self.key", "attn.kv"),
            ("attention.self.value", "attn.kv"),
            ("attention.self.sr", "attn.sr"),
            ("attention.self.layer_norm", "attn.norm"),
            ("attention.output.dense", "attn.proj"),
            ("mlp.dense1", "ffn.fc1"),
            ("mlp.dwconv.dwconv", "ffn.dw"),
            ("mlp.dense2", "ffn.fc2"),
        ],
    )?;
    Some((format!("stages.{stage}.blocks.{block}.{rest}"), order))
}

/// NVlabs' MiT and SegFormer.
fn nvlabs(name: &str) -> Option<String> {
    if let Some(head) = name.strip_prefix("decode_head.") {
        let level = head.strip_prefix("linear_c").and_then(from_one);
        let head = match level {
            Some((level, rest)) => format!("linear.{level}.{}", rest.strip_prefix("proj.")?),
            None => replaced(
                head,
                &[
                    ("linear_fuse.conv", "fuse"),
                    ("linear_fuse.bn", "bn"),
                    ("linear_pred", "cls"),
                ],
            )?,
        };
        return Some(format!("tail.head.{head}"));
    }
    let name = name.strip_prefix("backbone.").unwrap_or(name);
    if let Some((stage, rest)) = name.strip_prefix("patch_embed").and_then(from_one) {
        let rest = replaced(rest, &[("proj", "embed"), ("norm", "embed_norm")])?;
        return Some(format!("stages.{stage}.{rest}"));
    }
    if let Some((stage, rest)) = name.strip_prefix("norm").and_then(from_one) {
        return Some(format!("stages.{stage}.norm.{rest}"));
    }
    let (stage, rest) = name.strip_prefix("block").and_then(from_one)?;
    let (block, rest) = numbered(rest)?;
    let rest = replaced(
        rest,
        &[
            ("norm1", "norm1"),
            ("norm2", "norm2"),
            ("attn.q", "attn.q"),
            ("attn.kv", "attn.kv"),
            ("attn.proj", "attn.proj"),
            ("attn.sr", "attn.sr"),
            ("attn.norm", "attn.norm"),
            ("mlp.fc1", "ffn.fc1"),
            ("mlp.dwconv.dwconv", "ffn.dw"),
            ("mlp.fc2", "ffn.fc2"),
        ],
    )?;
    Some(format!("stages.{stage}.blocks.{block}.{rest}"))
}

/// mmsegmentation's MixVisionTransformer and SegformerHead, alone or within s2s2net.
fn mmseg(name: &str) -> Vec<Part> {
    let whole = |name: Option<String>| {
        let parts = name.into_iter().map(|name| part(name, 0, Rows::All));
        parts.collect()
    };
    let stripped = |beginnings: &[&str]| {
        let mut beginnings = beginnings.iter();
        beginnings.find_map(|beginning| name.strip_prefix(beginning))
    };
    if let Some(rest) = name.strip_prefix("segmmask_post_upsample_conv_layer_") {
        return whole(Some(format!("tail.up.{rest}")));
    }
    if let Some(head) = stripped(&["segformer_head.", "decode_head."]) {
        let level = head.strip_prefix("convs.").and_then(numbered);
        let head = match level {
            Some((level, rest)) => {
                let rest = rest.strip_prefix("conv.");
                rest.map(|rest| format!("linear.{level}.{rest}"))
            }
            None => replaced(
                head,
                &[
                    ("fusion_conv.conv", "fuse"),
                    ("fusion_conv.bn", "bn"),
                    ("conv_seg", "cls"),
                ],
            ),
        };
        return whole(head.map(|head| format!("tail.head.{head}")));
    }
    let layers = stripped(&["segformer_backbone.", "backbone."]).unwrap_or(name);
    let Some((stage, rest)) = layers.strip_prefix("layers.").and_then(numbered) else {
        return Vec::new();
    };
    let Some((layer, rest)) = numbered(rest) else {
        return Vec::new();
    };
    let stage = format!("stages.{stage}");
    match layer {
        0 => {
            let rest = replaced(rest, &[("projection", "embed"), ("norm", "embed_norm")]);
            whole(rest.map(|rest| format!("{stage}.{rest}")))
        }
        1 => {
            let Some((block, rest)) = numbered(rest) else {
                return Vec::new();
            };
            let block = format!("{stage}.blocks.{block}");
            if let Some(kind) = rest.strip_prefix("attn.attn.in_proj_") {
                return vec![
                    part(format!("{block}.attn.q.{kind}"), 0, Rows::FirstThird),
                    part(format!("{block}.attn.kv.{kind}"), 0, Rows::LastTwoThirds),
                ];
            }
            let rest = replaced(
                rest,
                &[
                    ("norm1", "norm1"),
                    ("norm2", "norm2"),
                    ("attn.attn.out_proj", "attn.proj"),
                    ("attn.sr", "attn.sr"),
                    ("attn.norm", "attn.norm"),
                    ("ffn.layers.0", "ffn.fc1"),
                    ("ffn.layers.1", "ffn.dw"),
                    ("ffn.layers.4", "ffn.fc2"),
                ],
            );
            whole(rest.map(|rest| format!("{block}.{rest}")))
        }
        2 => whole(Some(format!("{stage}.norm.{rest}"))),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(origin: Origin, name: &str, expected: &[(&str, usize, Rows)]) {
        let parts = parts(origin, name);
        let parts: Vec<_> = parts
            .iter()
            .map(|part| (&part.name[..], part.order, part.rows))
            .collect();
        assert_eq!(parts, expected, "{name}");
    }

    #[test]
    fn names_of_hugging_face() {
        let check = |name, ours, order| {
            check(Origin::HuggingFace, name, &[(ours, order, Rows::All)]);
        };
        let block = "segformer.encoder.block.2.13";
        let value = format!("{block}.attention.self.value.bias");
        check(&value, "stages.2.blocks.13.attn.kv.bias", 1);
        let dwconv = format!("{block}.mlp.dwconv.dwconv.weight");
        check(&dwconv, "stages.2.blocks.13.ffn.dw.weight", 0);
        check("encoder.layer_norm.3.bias", "stages.3.norm.bias", 0);
        check(
            "decode_head.linear_c.0.proj.bias",
            "tail.head.linear.0.bias",
            0,
        );
        check(
            "decode_head.batch_norm.running_var",
            "tail.head.bn.running_var",
            0,
        );
        super::tests::check(Origin::HuggingFace, "classifier.weight", &[]);
    }

    #[test]
    fn names_of_mmsegmentation() {
        let check = |name, expected: &[_]| check(Origin::Mmseg, name, expected);
        check(
            "segformer_backbone.layers.1.1.0.attn.attn.in_proj_weight",
            &[
                ("stages.1.blocks.0.attn.q.weight", 0, Rows::FirstThird),
                ("stages.1.blocks.0.attn.kv.weight", 0, Rows::LastTwoThirds),
            ],
        );
        check(
            "backbone.layers.0.0.projection.weight",
            &[("stages.0.embed.weight", 0, Rows::All)],
        );
        check("decode_head.convs.0.bn.weight", &[]);
        check(
            "backbone.layers.0.2.weight",
            &[("stages.0.norm.weight", 0, Rows::All)],
        );
    }

    #[test]
    fn names_of_nvlabs() {
        let check = |name, ours| check(Origin::Nvlabs, name, &[(ours, 0, Rows::All)]);
        check("patch_embed1.proj.weight", "stages.0.embed.weight");
        check(
            "backbone.block4.2.attn.kv.bias",
            "stages.3.blocks.2.attn.kv.bias",
        );
        check("norm4.weight", "stages.3.norm.weight");
        check(
            "decode_head.linear_c4.proj.weight",
            "tail.head.linear.3.weight",
        );
        super::tests::check(Origin::Nvlabs, "head.weight", &[]);
    }
}
