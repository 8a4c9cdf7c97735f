//! Every update rule at every stage, rank count, precision and offload: parameters, moments and averages are those of the
//! rule written out by hand on doubles, and no bit depends on where they live.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod vectors;

use terrashard_collectives::local;
use terrashard_layout::Stage;
use terrashard_zero::{
    AdamW, Error, LossScale, Offload, Optimizer, ParameterGroup, Precision, ReduceDtype, Reduction,
    Select, Sgd, StateKind, StepOutcome, ZeroConfig,
};
use vectors::{Rank, SIZES, first, gradient};

const LR: f64 = 0.05;
const STEPS: u64 = 3;
const EMA: f64 = 0.75;

/// Parameters, first and second moments and averages, of one element after another.
#[derive(Clone, Debug, Default, PartialEq)]
struct States {
    parameters: Vec<f64>,
    m: Vec<f64>,
    v: Vec<f64>,
    ema: Vec<f64>,
}

/// The rule as its authors write it down, for each element by itself.
fn by_hand(rule: Optimizer, clip: impl Fn(u64) -> f64) -> States {
    let mut states = States::default();
    for (part, &size) in SIZES.iter().enumerate() {
        // The second part is in a group of its own.
        let (lr, decay) = match part {
            1 => (0.5 * LR, 0.25),
            _ => (LR, rule.weight_decay()),
        };
        for i in 0..size {
            let (mut p, mut m, mut v) = (first(part, i), 0.0, 0.0);
            let mut ema = p;
            for step in 1..=STEPS {
                let g = gradient(part, i, step) * clip(step);
                match rule {
                    Optimizer::AdamW(rule) => {
                        m = rule.beta1 * m + (1.0 - rule.beta1) * g;
                        v = rule.beta2 * v + (1.0 - rule.beta2) * g * g;
                        let m_hat = m / (1.0 - rule.beta1.powi(step as i32));
                        let v_hat = v / (1.0 - rule.beta2.powi(step as i32));
                        p = p - lr * decay * p - lr * m_hat / (v_hat.sqrt() + rule.epsilon);
                    }
                    Optimizer::Sgd(rule) => {
                        let g = g + decay * p;
                        m = rule.momentum * m + g;
                        p -= lr
                            * if rule.nesterov {
                                g + rule.momentum * m
                            } else {
                                m
                            };
                    }
                }
                ema = EMA * ema + (1.0 - EMA) * p;
            }
            states.parameters.push(p);
            states.m.push(m);
            states.v.push(v);
            states.ema.push(ema);
        }
    }
    match rule {
        Optimizer::AdamW(_) => {}
        Optimizer::Sgd(rule) => {
            states.v.clear();
            if rule.momentum == 0.0 {
                states.m.clear();
            }
        }
    }
    states
}

/// The same by an optimizer, as rank 0 sees it.
fn trained(config: &ZeroConfig, ranks: usize) -> States {
    let results = local::run(ranks, |communicator| -> Result<_, Error> {
        let mut rank = Rank::new(config.clone(), communicator)?;
        for step in 1..=STEPS {
            for _ in 0..config.accumulate {
                rank.backward(|part, i| gradient(part, i, step))?;
            }
            let outcome = rank.optimizer.step(LR, &[])?;
            assert!(
                matches!(outcome, StepOutcome::Applied { .. }),
                "{outcome:?}"
            );
        }
        Ok(States {
            parameters: rank.state(StateKind::Parameter)?.concat(),
            m: rank.state(StateKind::Momentum)?.concat(),
            v: rank.state(StateKind::Variance)?.concat(),
            ema: rank.state(StateKind::Ema)?.concat(),
        })
    });
    results.unwrap().swap_remove(0)
}

fn close(got: &[f64], expected: &[f64], bound: f64, what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
        let far = (got - expected).abs();
        assert!(
            far <= bound * (1.0 + expected.abs()),
            "{what}, element {index}: {got}, not {expected}"
        );
    }
}

fn config(rule: Optimizer, precision: Precision) -> ZeroConfig {
    ZeroConfig {
        precision,
        optimizer: rule,
        reduction: Reduction::Mean,
        groups: vec![ParameterGroup {
            select: Select::Name("parts.1".into()),
            lr_factor: 0.5,
            weight_decay: 0.25,
            frozen: false,
        }],
        // Several buckets, of which none begins where a parameter does by chance.
        bucket_bytes: Some(200),
        ema: Some(EMA),
        // Gradients of up to one stay far below what f16 holds.
        loss_scale: LossScale {
            initial: 8.0,
            ..LossScale::default()
        },
        ..ZeroConfig::default()
    }
}

/// Where states may live at each stage.
fn places() -> Vec<(Stage, Offload, f64)> {
    let mut places = Vec::new();
    for stage in [Stage::Zero, Stage::One, Stage::Two, Stage::Three] {
        places.push((stage, Offload::None, 1.0));
        if stage != Stage::Zero {
            // Odd shares cut buckets in the middle of a parameter.
            places.extend([0.37, 1.0].map(|share| (stage, Offload::Optimizer, share)));
        }
        if stage == Stage::Three {
            places.extend([0.0, 0.37, 1.0].map(|share| (stage, Offload::Parameters, share)));
        }
    }
    places
}

fn check(rule: Optimizer) {
    let expected = by_hand(rule, |_| 1.0);
    for precision in [
        Precision::F64,
        Precision::F32,
        Precision::Bf16,
        Precision::F16,
    ] {
        let bound = match precision {
            Precision::F64 => 1e-12,
            _ => 1e-6,
        };
        // Gradients are exact in every type, so that how they travel makes no difference.
        for reduce_dtype in [ReduceDtype::Full, ReduceDtype::Compute] {
            for ranks in [1, 3] {
                let mut same: Option<States> = None;
                for (stage, offload, offload_fraction) in places() {
                    let config = ZeroConfig {
                        stage,
                        offload,
                        offload_fraction,
                        reduce_dtype,
                        ..config(rule, precision)
                    };
                    let got = trained(&config, ranks);
                    let what = format!(
                        "{rule:?}, {precision:?}, {reduce_dtype:?}, {ranks} ranks, stage {stage}, {offload:?} {offload_fraction}"
                    );
                    close(&got.parameters, &expected.parameters, bound, &what);
                    close(&got.m, &expected.m, bound, &format!("m of {what}"));
                    close(&got.v, &expected.v, bound, &format!("v of {what}"));
                    close(
                        &got.ema,
                        &expected.ema,
                        bound,
                        &format!("average of {what}"),
                    );
                    assert!(*same.get_or_insert_with(|| got.clone()) == got, "{what}");
                }
            }
        }
    }
}

#[test]
fn adamw_is_adamw_wherever_its_states_live() {
    check(Optimizer::AdamW(AdamW::default()));
    check(Optimizer::AdamW(AdamW {
        beta1: 0.5,
        beta2: 0.75,
        epsilon: 1e-3,
        weight_decay: 0.0,
    }));
}

#[test]
fn sgd_is_sgd_wherever_its_states_live() {
    let plain = Sgd {
        momentum: 0.0,
        nesterov: false,
        weight_decay: 0.0,
    };
    check(Optimizer::Sgd(plain));
    check(Optimizer::Sgd(Sgd {
        weight_decay: 0.125,
        ..plain
    }));
}

#[test]
fn momentum_is_momentum_wherever_its_states_live() {
    for nesterov in [false, true] {
        check(Optimizer::Sgd(Sgd {
            momentum: 0.75,
            nesterov,
            weight_decay: 0.125,
        }));
    }
}

#[test]
fn clipping_scales_what_the_rule_sees() {
    let squares = |step| {
        let parts = SIZES.iter().enumerate();
        let squares =
            parts.flat_map(|(part, &size)| (0..size).map(move |i| gradient(part, i, step).powi(2)));
        squares.sum::<f64>()
    };
    let rule = Optimizer::Sgd(Sgd::default());
    let clip = |step| (2.0 / (squares(step).sqrt() + 1e-6)).min(1.0);
    assert!(clip(1) < 0.5, "clipping takes part");
    let expected = by_hand(rule, clip);
    for (stage, offload, offload_fraction) in places() {
        let config = ZeroConfig {
            stage,
            offload,
            offload_fraction,
            clip_norm: Some(2.0),
            accumulate: 2,
            ..config(rule, Precision::F64)
        };
        let what = format!("stage {stage}, {offload:?} {offload_fraction}");
        let got = trained(&config, 2);
        close(&got.parameters, &expected.parameters, 1e-12, &what);
        close(&got.ema, &expected.ema, 1e-12, &what);
    }
}
