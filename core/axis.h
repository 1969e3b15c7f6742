// Axes of the grid of ranks, and sets of axes.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace cleave {

enum class Axis : uint8_t { world, pipe, data, sequence, tensor };
std::string_view name_of(Axis axis);

class AxisSet {
 public:
  constexpr AxisSet() = default;
  constexpr AxisSet(std::initializer_list<Axis> axes) {
    for (const Axis axis : axes) bits_ |= bit(axis);
  }
  constexpr void add(Axis axis) { bits_ |= bit(axis); }
  constexpr void add(AxisSet others) { bits_ |= others.bits_; }
  constexpr bool has(Axis axis) const { return bits_ & bit(axis); }
  constexpr bool has_all(AxisSet others) const { return (bits_ & others.bits_) == others.bits_; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr AxisSet without(AxisSet others) const {
    AxisSet left;
    left.bits_ = bits_ & ~others.bits_;
    return left;
  }
  // Arbitrary order with the empty set first.
  constexpr auto operator<=>(const AxisSet&) const = default;

 private:
  static constexpr uint32_t bit(Axis axis) { return uint32_t{1} << unsigned(axis); }
  uint32_t bits_ = 0;
};

}  // namespace cleave
