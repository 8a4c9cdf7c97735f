//! Differentiable operations that burn lacks or does slowly, each with a hand-written backward
