// Shapes of matrix products: scaled-down training shapes, primes, ones and empty ones.
#pragma once
#include <cstdint>

namespace cleave::kernels {

struct MatmulCase {
  int64_t m, n, k;
};
inline constexpr MatmulCase kMatmulCases[] = {{64, 96, 128}, {1, 1, 1},     {7, 13, 5},      {17, 1, 31},
                                              {1, 67, 33},   {33, 129, 65}, {128, 128, 128}, {0, 4, 3},
                                              {5, 0, 3},     {3, 5, 0},     {48, 50, 257},   {130, 200, 17}};
// Shapes that cross the blocks of the packed product: of rows, columns and depth, and the chunks above them.
inline constexpr MatmulCase kBlockedCases[] = {
    {245, 260, 390}, {3850, 20, 9}, {13, 4103, 9}, {970, 33, 12}, {8, 530, 400}};

}  // namespace cleave::kernels
