// What an element's update takes beside its operands: said once for the bodies of both devices, which have
// the same bits where they compute with the same numbers. Nothing here has functions, because the CPU's
// bodies are compiled for each instruction set and may share none.
#pragma once

namespace cleave::kernels {

// Moving averages of the gradient and of its square: rest is 1 - beta.
struct AverageNumbers {
  float beta1, beta2, rest1, rest2;
};
struct AdamNumbers {
  AverageNumbers averages;
  float lr, eps, scale;
  float inside, outside;  // weight decay: in the gradient, and beside the step
  float c1, c2;           // 1 / (1 - beta^step)
};
struct SgdNumbers {
  float lr, momentum, damp, decay, scale;  // damp: 1 - dampening
  bool nesterov, first;
};
struct LionNumbers {
  AverageNumbers averages;
  float lr, kept, scale;  // kept: 1 - lr * weight_decay
};
struct AdagradNumbers {
  float lr, eps, decay, scale;
};
struct LambNumbers {
  AverageNumbers averages;
  float eps, decay, scale;
};
struct LambStepNumbers {
  float rate, eps, decay;
};

}  // namespace cleave::kernels
