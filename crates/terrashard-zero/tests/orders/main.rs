//! Passes that do not come in the usual order, and steps that fail: the gradients of the next step are those of its own
//! passes.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod chain;
#[expect(dead_code, reason = "the other tests use the rest of it")]
#[path = "../net/mod.rs"]
mod net;

use chain::{Chain, Named, cfg, dense, layer, loss, named, opt, x};
use terrashard_collectives::Communicator;
use terrashard_collectives::local;
use terrashard_layout::Stage;
use terrashard_zero::{
    Error, NonFinite, ParameterGroup, Precision, Progress, Recompute, Result, Select, StateKind,
    StepOutcome, Unused, ZeroConfig,
};

const STAGES: [Stage; 4] = [Stage::Zero, Stage::One, Stage::Two, Stage::Three];

#[test]
fn two_forwards_before_two_backwards() {
    for stage in STAGES {
        for r in [Recompute::Keep, Recompute::Recompute] {
            let run = |early: bool| {
                local::run(2, |c| -> Result<Named> {
                    let rank = c.rank() as u64;
                    let n = Chain::new();
                    let mut o = opt(
                        &n,
                        ZeroConfig {
                            accumulate: 2,
                            ..cfg(stage)
                        },
                        c,
                    )?;
                    if early {
                        let l1 = loss(&o, &n, rank, r);
                        let l2 = loss(&o, &n, rank + 10, r);
                        o.backward(l1)?;
                        o.backward(l2)?;
                    } else {
                        let l1 = loss(&o, &n, rank, r);
                        o.backward(l1)?;
                        let l2 = loss(&o, &n, rank + 10, r);
                        o.backward(l2)?;
                    }
                    Ok(named(o.whole_gradients()?))
                })
            };
            let want = run(false).unwrap().swap_remove(0);
            match run(true) {
                Err(e) => panic!("two_forwards {stage:?} {r:?}: {e}"),
                Ok(mut got) => {
                    if got.swap_remove(0) != want {
                        panic!("two_forwards {stage:?} {r:?}: gradients differ");
                    }
                }
            }
        }
    }
}

#[test]
fn stale_prefetch() {
    let run = |prefetch: usize| {
        local::run(2, |c| -> Result<(Named, usize)> {
            let n = Chain::new();
            let mut o = opt(
                &n,
                ZeroConfig {
                    prefetch,
                    ..cfg(Stage::Three)
                },
                c,
            )?;
            for step in 0..3 {
                let l = loss(&o, &n, step, Recompute::Keep);
                o.backward(l)?;
                // A look at the first block's output, outside of training.
                let _ = layer(&o, &n.a, x(5, false), Recompute::Keep);
                o.step(0.1, &[])?;
            }
            Ok((
                named(o.whole_states(StateKind::Parameter)?),
                o.gathered_bytes(),
            ))
        })
        .unwrap()
        .swap_remove(0)
    };
    let (want, _) = run(0);
    for prefetch in [1, 2] {
        let (got, _) = run(prefetch);
        if got != want {
            let worst = got
                .iter()
                .flat_map(|(k, v)| v.iter().zip(&want[k]).map(|(a, b)| (a - b).abs()))
                .fold(0.0, f64::max);
            panic!("stale_prefetch {prefetch}: parameters differ by {worst}");
        }
    }
}

#[test]
fn going_on_after_unused() {
    for stage in STAGES {
        let run = |first: bool| {
            local::run(2, |c| -> Result<Named> {
                let n = Chain::new();
                let mut o = opt(
                    &n,
                    ZeroConfig {
                        unused: Unused::Error,
                        ..cfg(stage)
                    },
                    c,
                )?;
                if first {
                    let l = loss(&o, &n, 1, Recompute::Keep);
                    o.backward(l)?;
                    assert!(matches!(o.step(0.1, &[]), Err(Error::Unused { .. })));
                }
                let l = loss(&o, &n, 1, Recompute::Keep)
                    + layer(&o, &n.side, x(2, true), Recompute::Keep).sum();
                o.backward(l)?;
                Ok(named(o.whole_gradients()?))
            })
        };
        let want = run(false).unwrap().swap_remove(0);
        match run(true) {
            Err(e) => panic!("going_on_after_unused {stage:?}: {e}"),
            Ok(got) => {
                if got[0] != want {
                    panic!(
                        "going_on_after_unused {stage:?}: a.weight {:?} instead of {:?}",
                        &got[0]["a.weight"][..2],
                        &want["a.weight"][..2]
                    );
                }
            }
        }
    }
}

#[test]
fn going_on_after_foreign() {
    for stage in STAGES {
        let run = |first: bool| {
            local::run(2, |c| -> Result<Named> {
                let n = Chain::new();
                let mut o = opt(
                    &n,
                    ZeroConfig {
                        accumulate: 2,
                        ..cfg(stage)
                    },
                    c,
                )?;
                if first {
                    let l = loss(&o, &n, 1, Recompute::Keep);
                    let f = o.enter(&dense(6, 6), &x(1, true));
                    drop(f);
                    assert!(o.backward(l).is_err());
                }
                let l = loss(&o, &n, 1, Recompute::Keep);
                o.backward(l)?;
                Ok(named(o.whole_gradients()?))
            })
        };
        let want = run(false).unwrap().swap_remove(0);
        match run(true) {
            Err(e) => panic!("going_on_after_foreign {stage:?}: {e}"),
            Ok(got) => {
                if got[0] != want {
                    panic!(
                        "going_on_after_foreign {stage:?}: a.weight {:?} instead of {:?}",
                        &got[0]["a.weight"][..2],
                        &want["a.weight"][..2]
                    );
                }
            }
        }
    }
}

#[test]
fn frozen_first_block() {
    for stage in STAGES {
        for r in [Recompute::Keep, Recompute::Recompute, Recompute::Offload] {
            let got = local::run(2, |c| -> Result<()> {
                let n = Chain::new();
                let groups = vec![ParameterGroup {
                    select: Select::Name("b.*".into()),
                    lr_factor: 1.0,
                    weight_decay: 0.0,
                    frozen: true,
                }];
                let mut o = opt(
                    &n,
                    ZeroConfig {
                        groups,
                        ..cfg(stage)
                    },
                    c,
                )?;
                let h = layer(&o, &n.b, x(1, true), r);
                let h = layer(&o, &n.c, h, r);
                let h = layer(&o, &n.b, h, r);
                o.backward(h.sum())?;
                o.step(0.1, &[])?;
                assert_eq!(o.gathered_bytes(), 0);
                Ok(())
            });
            if let Err(e) = got {
                panic!("frozen_first_block {stage:?} {r:?}: {e}");
            }
        }
    }
}

#[test]
fn abandoned_passes() {
    for stage in STAGES {
        for r in [Recompute::Keep, Recompute::Recompute, Recompute::Offload] {
            for prefetch in [0, 2] {
                let run = |mess: bool| {
                    local::run(2, |c| -> Result<Named> {
                        let n = Chain::new();
                        let mut o = opt(
                            &n,
                            ZeroConfig {
                                prefetch,
                                ..cfg(stage)
                            },
                            c,
                        )?;
                        for step in 0..3 {
                            if mess {
                                drop(loss(&o, &n, 77, r));
                                drop(layer(&o, &n.c, layer(&o, &n.b, x(4, true), r), r));
                                drop(loss(&o, &n, 78, r).inner());
                                drop(o.plain(&n.d));
                                assert_eq!(o.gathered_bytes(), 0, "{stage:?} {r:?} {prefetch}");
                            }
                            let l = loss(&o, &n, step, r);
                            o.backward(l)?;
                            assert_eq!(
                                o.gathered_bytes(),
                                0,
                                "after backward {stage:?} {r:?} {prefetch}"
                            );
                            o.step(0.1, &[])?;
                        }
                        Ok(named(o.whole_states(StateKind::Parameter)?))
                    })
                };
                let want = run(false).unwrap().swap_remove(0);
                match run(true) {
                    Err(e) => panic!("abandoned_passes {stage:?} {r:?} {prefetch}: {e}"),
                    Ok(got) => {
                        if got[0] != want {
                            panic!("abandoned_passes {stage:?} {r:?} {prefetch}: differs");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn unused_that_differs() {
    for stage in STAGES {
        for on in [0usize, 1] {
            let got = local::run(2, |c| -> Result<()> {
                let rank = c.rank();
                let n = Chain::new();
                let mut o = opt(
                    &n,
                    ZeroConfig {
                        unused: Unused::Error,
                        ..cfg(stage)
                    },
                    c,
                )?;
                let h = loss(&o, &n, 1, Recompute::Keep);
                // Both ranks run the branch; one uses what comes out.
                let side = layer(&o, &n.side, x(2, true), Recompute::Keep);
                let l = if rank == on { h + side.sum() } else { h };
                o.backward(l)?;
                o.step(0.1, &[])?;
                Ok(())
            });
            // One rank needs it, so it is used.
            got.unwrap();
        }
    }
}

#[test]
fn squares_that_overflow() {
    for clip_norm in [None, Some(1.0)] {
        let got = local::run(2, |c| -> Result<StepOutcome> {
            let n = Chain::new();
            let mut o = opt(
                &n,
                ZeroConfig {
                    clip_norm,
                    nonfinite: NonFinite::Skip,
                    ..cfg(Stage::Two)
                },
                c,
            )?;
            let l = loss(&o, &n, 1, Recompute::Keep).mul_scalar(1e22);
            o.backward(l)?;
            let finite = named(o.whole_gradients()?)
                .values()
                .flatten()
                .all(|x| x.is_finite());
            assert!(finite);
            o.step(0.1, &[])
        });
        for outcome in got.unwrap() {
            let StepOutcome::Applied { norm, .. } = outcome else {
                panic!("{clip_norm:?}: {outcome:?}")
            };
            assert!(norm.is_finite() && norm > 1e20, "{norm}");
        }
    }
}

#[test]
fn looking_at_the_gradients_ends_the_window() {
    for stage in STAGES {
        let results = local::run(2, |c| -> Result<()> {
            let n = Chain::new();
            let config = ZeroConfig {
                accumulate: 2,
                ..cfg(stage)
            };
            let mut o = opt(&n, config, c)?;
            o.backward(loss(&o, &n, 1, Recompute::Keep))?;
            o.whole_gradients()?;
            let refused = o.backward(loss(&o, &n, 2, Recompute::Keep));
            assert!(
                matches!(refused, Err(Error::MicroBatches { .. })),
                "{refused:?}"
            );
            o.step(0.1, &[])?;
            o.backward(loss(&o, &n, 3, Recompute::Keep))
        });
        results.unwrap();
    }
}

#[test]
fn a_loss_scale_belongs_to_f16() {
    let scale = |precision, saved| {
        let results = local::run(1, |c| -> Result<_> {
            let n = Chain::new();
            let config = ZeroConfig {
                precision,
                ..cfg(Stage::Two)
            };
            let mut o = opt(&n, config, c)?;
            let states = o.own_states()?;
            let progress = Progress {
                loss_scale: saved,
                ..o.progress()
            };
            o.load(progress, &|name, kind, interval| {
                let mut states = states.iter();
                let state = states.find(|s| s.name == name && s.kind == kind).unwrap();
                Ok(state.bytes()[interval.start * 4..interval.end * 4].to_vec())
            })?;
            Ok(o.progress().loss_scale)
        });
        results.unwrap()[0]
    };
    assert_eq!(scale(Precision::F16, Some(8.0)), Some(8.0));
    assert_eq!(scale(Precision::F16, None), Some(65536.0));
    assert_eq!(scale(Precision::F32, Some(8.0)), None);
    assert_eq!(scale(Precision::Bf16, None), None);
}

#[test]
fn a_model_of_which_nothing_is_trained_is_refused() {
    let results = local::run(1, |c| -> Result<()> {
        let n = Chain::new();
        let groups = vec![ParameterGroup {
            select: Select::Name("*".into()),
            lr_factor: 1.0,
            weight_decay: 0.0,
            frozen: true,
        }];
        let config = ZeroConfig {
            groups,
            ..cfg(Stage::Two)
        };
        let refused = opt(&n, config, c).err();
        assert!(matches!(
            refused,
            Some(Error::Setting { key: "groups", .. })
        ));
        Ok(())
    });
    results.unwrap();
}
