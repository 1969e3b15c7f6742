// Toy task: classify points by their quadrant of the plane. Points are functions of their index, so
// ranks need no file and use different points.
#pragma once
#include "cleave.h"
#include "core/philox.h"

class Quadrants {
 public:
  // place, places: data-parallel rank and size.
  Quadrants(int64_t points, int place, int places)
      : place_(place), places_(places), points_(size_t(2 * points)), quadrants_(size_t(points)) {}

  // Valid until the next call.
  cleave::Batch next() {
    const int64_t first = (batch_++ * places_ + place_) * int64_t(quadrants_.size());
    for (size_t i = 0; i < quadrants_.size(); ++i) {
      const auto number = uint64_t(first) + i;
      const float x = points_[2 * i] = cleave::Philox{1, 1}.uniform(number) - 0.5f,
                  y = points_[2 * i + 1] = cleave::Philox{1, 2}.uniform(number) - 0.5f;
      quadrants_[i] = (x > 0) + 2 * (y > 0);
    }
    return cleave::batch_of(points_, quadrants_);
  }

 private:
  int64_t place_, places_, batch_ = 0;
  std::vector<float> points_;
  std::vector<int32_t> quadrants_;
};
