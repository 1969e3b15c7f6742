#include "kernels/norm.h"

#include "kernels/cpu/operands.h"
#include "kernels/cpu/scratch.h"

namespace cleave::kernels::cpu {

void run(const LayerNormForward& op) {
  layer_norm({.y = vec(op.y),
              .sum = vec(op.sum),
              .x = vec(op.x),
              .residual = vec(op.residual),
              .weight = vec(op.weight),
              .bias = vec(op.bias),
              .mean = op.mean.as<float>(),
              .rstd = op.rstd.as<float>(),
              .rows = op.x.dim(0),
              .width = op.x.dim(1),
              .eps = op.eps});
}

void run(const LayerNormBackward& op) {
  const int64_t rows = op.x.dim(0), width = op.x.dim(1);
  const Scratch scratch(layer_norm_grad_scratch(rows, width) * 4);
  layer_norm_grad({.dx = vec(op.dx),
                   .dweight = vec(op.dweight),
                   .dbias = vec(op.dbias),
                   .dy = vec(op.dy),
                   .x = vec(op.x),
                   .weight = vec(op.weight),
                   .dresidual = vec(op.dresidual),
                   .mean = op.mean.as<float>(),
                   .rstd = op.rstd.as<float>(),
                   .rows = rows,
                   .width = width,
                   .accumulate_weight = op.accumulate_weight,
                   .accumulate_bias = op.accumulate_bias,
                   .scratch = scratch.floats()});
}

void run(const RmsNormForward& op) {
  rms_norm({.y = vec(op.y),
            .sum = vec(op.sum),
            .x = vec(op.x),
            .residual = vec(op.residual),
            .weight = vec(op.weight),
            .rstd = op.rstd.as<float>(),
            .rows = op.x.dim(0),
            .width = op.x.dim(1),
            .eps = op.eps,
            .offset = op.offset});
}

void run(const RmsNormBackward& op) {
  const int64_t rows = op.x.dim(0), width = op.x.dim(1);
  const Scratch scratch(rms_norm_grad_scratch(rows, width) * 4);
  rms_norm_grad({.dx = vec(op.dx),
                 .dweight = vec(op.dweight),
                 .dy = vec(op.dy),
                 .x = vec(op.x),
                 .weight = vec(op.weight),
                 .dresidual = vec(op.dresidual),
                 .rstd = op.rstd.as<float>(),
                 .rows = rows,
                 .width = width,
                 .offset = op.offset,
                 .accumulate = op.accumulate,
                 .scratch = scratch.floats()});
}

}  // namespace cleave::kernels::cpu
