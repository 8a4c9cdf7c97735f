//! Memory as the allocator sees it. Alone in its process, and its tests take turns, so that what is counted is theirs.

mod absent;
mod files;
mod sizes;

use std::alloc::{GlobalAlloc, Layout, System};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError};

use absent::Alone;
use burn::tensor::{Device, Distribution, Tensor};
use terrashard_collectives::{Communicator, local};
use terrashard_layout::Stage;
use terrashard_tests::chain::{Chain, Operations, initial};
use terrashard_zero::{
    Error, Initial, Offload, Optimizer, ParameterGroup, Precision, Recompute, ReduceDtype, Result,
    Select, Sgd, ZeroConfig, ZeroOptimizer,
};

/// Counts live bytes and their peak.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn grown(bytes: usize) {
    let live = LIVE.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(live, Ordering::Relaxed);
}

#[expect(unsafe_code, reason = "a global allocator is an unsafe trait")]
// SAFETY: every call goes to the system's allocator with the same arguments; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    // SAFETY: as the trait asks; the system's allocator gets what the caller promised.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    // SAFETY: as the trait asks; the system's allocator gets what the caller promised.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    // SAFETY: as the trait asks; the system's allocator gets what the caller promised.
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    // SAFETY: as the trait asks; the system's allocator gets what the caller promised.
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both are there while the system copies.
        grown(size);
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// One test at a time.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn live() -> usize {
    LIVE.load(Ordering::Relaxed)
}

/// The most bytes since the last call, over those that live now.
fn restart_peak() {
    PEAK.store(live(), Ordering::Relaxed);
}

fn peak() -> usize {
    PEAK.load(Ordering::Relaxed)
}

const RANKS: usize = 4;
const BLOCKS: usize = 16;
const WIDTH: usize = 256;
/// Bytes of one block's parameters.
const BLOCK: usize = 4 * WIDTH * (WIDTH + 1);
/// All parameters.
const MODEL: usize = BLOCKS * BLOCK;
/// What is neither parameters nor gradients, of one rank: activations of two samples, graphs, queues, and a megabyte that
/// burn allocates for products of matrices.
const SLACK: usize = (1 << 20) + BLOCK;

fn config(stage: Stage) -> ZeroConfig {
    ZeroConfig {
        stage,
        // No states, so that what is measured is parameters and gradients.
        optimizer: Optimizer::Sgd(Sgd {
            momentum: 0.0,
            ..Sgd::default()
        }),
        bucket_bytes: Some(BLOCK),
        prefetch: 0,
        overlap: false,
        ..ZeroConfig::default()
    }
}

/// One rank with a chain of equal blocks.
struct Rank {
    chain: Chain,
    optimizer: ZeroOptimizer,
    barrier: Arc<Barrier>,
    /// Live bytes before its start.
    before: usize,
}

impl Rank {
    fn new(config: ZeroConfig, barrier: Arc<Barrier>, rank: Arc<dyn Communicator>) -> Result<Self> {
        let chain = Chain::new(&[WIDTH; BLOCKS + 1]);
        let first = Initial::Keyed(&initial);
        let optimizer = ZeroOptimizer::new(&chain, config, first, rank, &Device::flex())?;
        optimizer.declare_blocks(&chain.blocks())?;
        Ok(Self {
            chain,
            optimizer,
            barrier,
            before: 0,
        })
    }

    fn output(&self, x: Tensor<2>, how: How, before: impl Fn(usize)) -> Tensor<2> {
        self.chain
            .forward(x, &self.optimizer, how.recompute, how.operations, before)
    }

    fn backward(&self, how: How) -> Result<()> {
        let device = match how.graph {
            Graph::Keeps => Device::flex().autodiff(),
            Graph::MakesAgain => Device::flex().autodiff().gradient_checkpointing(),
        };
        let y = self.output(input(&device), how, |_| ());
        self.optimizer.backward(y.mean())
    }

    fn step(&mut self, how: How) -> Result<()> {
        self.backward(how)?;
        self.optimizer.step(0.1, &[]).map(drop)
    }

    /// Live bytes when every rank is here.
    fn settled(&self) -> usize {
        self.barrier.wait();
        let live = live();
        self.barrier.wait();
        live
    }

    /// The peak of `run` on all ranks together, over what lives before it.
    fn peak_of(&self, run: impl FnOnce() -> Result<()>) -> Result<usize> {
        self.barrier.wait();
        restart_peak();
        let before = self.settled();
        run()?;
        self.barrier.wait();
        let peak = peak() - before;
        self.barrier.wait();
        Ok(peak)
    }
}

fn input(device: &Device) -> Tensor<2> {
    Tensor::random([2, WIDTH], Distribution::Default, device)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Graph {
    Keeps,
    MakesAgain,
}

/// How a chain is run.
#[derive(Clone, Copy, Debug)]
struct How {
    recompute: Recompute,
    operations: Operations,
    graph: Graph,
}

const KEEP: How = How {
    recompute: Recompute::Keep,
    operations: Operations::Own,
    graph: Graph::Keeps,
};

const WAYS: [How; 4] = [
    KEEP,
    How {
        recompute: Recompute::Recompute,
        ..KEEP
    },
    How {
        recompute: Recompute::Offload,
        operations: Operations::Burn,
        graph: Graph::Keeps,
    },
    How {
        recompute: Recompute::Keep,
        operations: Operations::Burn,
        graph: Graph::MakesAgain,
    },
];

fn ranks<T: Send>(config: &ZeroConfig, body: impl Fn(Rank) -> Result<T> + Sync) -> Vec<T> {
    let barrier = Arc::new(Barrier::new(RANKS));
    let results = local::run(RANKS, |communicator| {
        body(Rank::new(
            config.clone(),
            barrier.clone(),
            Arc::new(communicator),
        )?)
    });
    results.unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn m4_gathered_parameters_are_gone_after_a_step_an_evaluation_and_an_error() {
    let _turn = turn();
    for how in WAYS {
        for prefetch in [0, 2] {
            let mut config = config(Stage::Three);
            (config.prefetch, config.overlap) = (prefetch, prefetch > 0);
            ranks(&config, |mut rank| {
                for _ in 0..2 {
                    rank.step(how)?;
                }
                let before = rank.settled();
                let same = |rank: &Rank, what: &str| {
                    assert_eq!(rank.optimizer.gathered_bytes(), 0, "{what}, {how:?}");
                    let now = rank.settled();
                    let apart = now.abs_diff(before);
                    // Of each rank, far less than a block: burn reclaims an abandoned graph in its next backward.
                    assert!(
                        apart < RANKS * BLOCK / 4,
                        "{what}, {how:?}: {apart} bytes apart"
                    );
                };
                rank.step(how)?;
                same(&rank, "a step");
                drop(rank.output(input(&Device::flex()), how, |_| ()));
                rank.optimizer.check()?;
                same(&rank, "an evaluation");
                // A panic in the sixth block, on all ranks.
                let autodiff = Device::flex().autodiff();
                let panics = |block| {
                    if block == 5 {
                        // Without the message, whose backtrace would stay in memory.
                        resume_unwind(Box::new("no memory"));
                    }
                };
                let failed = catch_unwind(AssertUnwindSafe(|| {
                    drop(rank.output(input(&autodiff), how, panics));
                }));
                assert!(failed.is_err());
                rank.optimizer.check()?;
                same(&rank, "an error in forward");
                // The next step is one like any other.
                rank.step(how)?;
                same(&rank, "a step after an error");
                Ok(())
            });
        }
    }
}

#[test]
fn m4_a_failed_gather_leaves_nothing_behind() {
    let _turn = turn();
    let before = live();
    let barrier = Arc::new(Barrier::new(RANKS));
    let results = local::run(RANKS, |communicator| {
        let leaves = communicator.rank() == 3;
        let rank = Rank::new(
            config(Stage::Three),
            barrier.clone(),
            Arc::new(communicator),
        )?;
        if leaves {
            return Ok(());
        }
        let failed = rank.backward(KEEP);
        assert!(
            matches!(failed, Err(Error::Collective { .. })),
            "{failed:?}"
        );
        assert_eq!(rank.optimizer.gathered_bytes(), 0);
        Ok::<_, Error>(())
    });
    results.unwrap_or_else(|error| panic!("{error}"));
    let after = live();
    assert!(after < before + BLOCK / 4, "{} bytes stay", after - before);
}

#[test]
fn m4_the_peak_of_a_step_is_the_shards_and_a_few_blocks() {
    let _turn = turn();
    for how in WAYS {
        let peak_of = |stage| {
            let peaks = ranks(&config(stage), |mut rank| {
                rank.step(how)?;
                rank.peak_of(|| rank.backward(how))
            });
            peaks.into_iter().max().expect("ranks")
        };
        let (two, three) = (peak_of(Stage::Two), peak_of(Stage::Three));
        // Of each rank: a gathered block with the buffer it came in, its gradients, a bucket with its shards.
        let few = RANKS * 4 * BLOCK + RANKS * SLACK;
        let gradients = MODEL;
        assert!(three < few + gradients, "{how:?}: {three} of {few}");
        // All parameters of all ranks, as a graph that keeps them holds them, would be more.
        assert!(few + gradients < RANKS * MODEL, "the bound says something");
        // Over what lives between steps, where stage 3 has three quarters of all parameters less.
        assert!(
            three < two + RANKS * 4 * BLOCK,
            "{how:?}: {three}, {two} at stage 2"
        );
    }
}

#[test]
fn m4_frozen_parameters_do_not_stay_gathered() {
    let _turn = turn();
    let mut config = config(Stage::Three);
    // All but the first and the last.
    for pattern in [
        "layers.1*",
        "layers.2*",
        "layers.3*",
        "layers.4*",
        "layers.5*",
        "layers.6*",
    ] {
        config.groups.push(ParameterGroup {
            select: Select::Name(pattern.into()),
            lr_factor: 1.0,
            weight_decay: 0.0,
            frozen: true,
        });
    }
    for how in WAYS {
        let peaks = ranks(&config, |mut rank| {
            rank.step(how)?;
            rank.peak_of(|| rank.backward(how))
        });
        let peak = peaks.into_iter().max().expect("ranks");
        let most = RANKS * 4 * BLOCK + RANKS * SLACK + MODEL;
        assert!(peak < most, "{how:?}: {peak} of {most}");
    }
}

#[test]
fn m4_live_bytes_of_the_stages_fall() {
    let _turn = turn();
    let live_at = |stage| {
        let lives = ranks(&config(stage), |mut rank| {
            rank.step(KEEP)?;
            Ok(rank.settled() - rank.before)
        });
        lives.into_iter().max().expect("ranks")
    };
    let (two, three) = (live_at(Stage::Two), live_at(Stage::Three));
    let apart = (two - three).abs_diff((RANKS - 1) * MODEL);
    assert!(
        apart < RANKS * BLOCK,
        "{two} at stage 2, {three} at stage 3"
    );
    assert!(three < MODEL + RANKS * SLACK, "{three}");
}

#[test]
fn m4_an_evaluation_holds_a_block_at_a_time() {
    let _turn = turn();
    for offload in [Offload::None, Offload::Parameters] {
        let mut config = config(Stage::Three);
        config.offload = offload;
        let peaks = ranks(&config, |rank| {
            rank.peak_of(|| {
                drop(rank.output(input(&Device::flex()), KEEP, |_| ()));
                rank.optimizer.check()
            })
        });
        let peak = peaks.into_iter().max().expect("ranks");
        assert!(peak < RANKS * 4 * BLOCK, "{offload:?}: {peak}");
    }
}

/// A branch that is off comes first in backward, and must not hold up what comes after it.
#[test]
fn m1_a_branch_that_is_off_holds_up_no_gradient() {
    let _turn = turn();
    let peak_with = |off: usize| {
        let peaks = ranks(&config(Stage::Two), |rank| {
            let run = || {
                let device = Device::flex().autodiff();
                let mut used = rank.chain.clone();
                used.layers.truncate(BLOCKS - off);
                let y = used.forward(
                    input(&device),
                    &rank.optimizer,
                    Recompute::Keep,
                    Operations::Own,
                    |_| (),
                );
                rank.optimizer.backward(y.mean())
            };
            rank.peak_of(run)
        });
        peaks.into_iter().max().expect("ranks")
    };
    let (all, some) = (peak_with(0), peak_with(1));
    assert!(
        some < all + RANKS * BLOCK,
        "{some} with a branch that is off, {all} without"
    );
}

#[test]
fn m3_a_large_model_starts_within_its_shards_and_one_parameter() {
    let _turn = turn();
    // About a hundred million parameters, the largest of four million.
    let widths = [2000; 26];
    let chain = Chain::new(&widths);
    let (numel, largest) = (chain.numel(), 2000 * 2000);
    let all = 8;
    let config = ZeroConfig {
        stage: Stage::One,
        precision: Precision::Bf16,
        reduce_dtype: ReduceDtype::Compute,
        ..ZeroConfig::default()
    };
    let quick = |name: &str, shape: &[usize]| {
        let value = name.len() as f32 * 1e-3;
        vec![value; shape.iter().product()]
    };
    // One rank of eight: the others are asked for nothing but the comparison of tables.
    let alone = Arc::new(Alone {
        rank: 3,
        ranks: all,
    });
    let before = live();
    restart_peak();
    let optimizer = ZeroOptimizer::new(
        &chain,
        config,
        Initial::Keyed(&quick),
        alone,
        &Device::flex(),
    )
    .unwrap_or_else(|error| panic!("{error}"));
    let (peak, held) = (peak() - before, live() - before);
    let shards = 12 * numel / all;
    let expected = 2 * numel + shards;
    assert!(held.abs_diff(expected) < 1 << 20, "{held} of {expected}");
    // One parameter as it is drawn, in single precision, and the shards of a bucket before and after they are joined.
    let bucket = 4 * (64 << 20) / 2 / all;
    let one = 4 * largest + 2 * bucket;
    let most = expected + one;
    assert!(
        peak < most,
        "{peak} of {most}, {one} of them for one parameter"
    );
    drop(optimizer);
}
