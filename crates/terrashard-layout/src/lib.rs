//! Who owns which elements of a sharded model: pure arithmetic over parameter rows, ranks, stages and buckets
