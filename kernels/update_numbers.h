// Scalar parameters of an element's update, shared by the bodies of both devices, which return the same bits
// for the same scalars. Contains no functions, because the CPU bodies are compiled per instruction set and
// must not share any.
#pragma once

namespace cleave::kernels {

// Moving averages of the gradient and of its square; rest is 1 - beta.
struct AverageNumbers {
  float beta1, beta2, rest1, rest2;
};
struct AdamNumbers {
  AverageNumbers averages;
  float lr, eps, scale;
  float inside, outside;  // weight decay: in the gradient; decoupled
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
