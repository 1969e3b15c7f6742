"""`cleave compare`: trains a script in the engine and in plain torch, and names the first difference.

Each step starts from the weights of the engine in both runs, and the reference updates with the gradients of the engine, so that no
difference passes from one step to the next. `eps` is the distance from 1 to the next number of a type. Allowed differences:

- Inputs, outputs and losses: none. Equal kernels on equal weights give equal bits.
- Gradients, by element: `(n + 2) * eps / 2 * S`. The engine adds `n` gradients of micro-batches and ranks, whose magnitudes have the sum
  `S`, in the type with the largest `eps` of gradients and messages; the reference adds in double. Each summand may also lose the
  smallest number of the type, divided by the loss scale.
- Norm: `4 * eps` of fp32 of the norm of the engine's gradients in double.
- Rates, betas, eps and weight decay of a parameter: `1e-9`, relative.
- Weights after the update, by element: `eps * (2 * |w| + 16 * (C + |c|))` of fp32. The update is evaluated in double from the engine's
  gradient: `w` is the weight, `c` its change, and `C` the change of the same rule with magnitudes as weight and gradient, so that `C`
  contains the terms that cancel in `c`.
- Frozen parameters and skipped steps: none.
"""
