// Baseline losses for predicting a text byte by byte without a neural network: interpolated n-gram models
// with Witten-Bell weights (Witten and Bell, "The zero-frequency problem", 1991). A language model that beats
// order n uses more context than the previous n - 1 bytes.
//
// For the n - 1 bytes h before the current byte c, N(h) is the number of occurrences of h with a successor in
// the training text, and T(h) the number of different successors:
//   p_n(c | h) = (N(h c) + T(h) p_{n-1}(c | h without its first byte)) / (N(h) + T(h)),
// p_0 = 1/256, and p_n = p_{n-1} if h did not occur. Order 1 is the byte frequency, order 2 uses one previous
// byte, and every distribution sums to 1.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace cleave::data {

class NgramModel {
 public:
  static constexpr int kMaxOrder = 5;

  // Counts the n-grams of 1 to max_order bytes of `train`; max_order is at most kMaxOrder.
  NgramModel(std::span<const uint8_t> train, int max_order);

  int max_order() const { return int(grams_.size()) - 1; }

  // Writes p_n(next | last n - 1 bytes of `before`) to out[n - 1], for n = 1 to max_order(). If `before` is
  // too short for an order, repeats the value of the longest possible order.
  void probabilities(std::span<const uint8_t> before, uint8_t next, std::span<double> out) const;

 private:
  // Open addressing; the key is the bytes of the n-gram. All n-grams of a table have the same length.
  struct Entry {
    uint64_t key_plus_one = 0;  // 0 = free
    uint32_t count = 0;         // occurrences of the n-gram
    uint32_t followed = 0;      // occurrences with a successor
    uint32_t followers = 0;     // number of different successors
  };
  class Table {
   public:
    Table();
    Entry& at(uint64_t key);  // adds a missing key
    const Entry* find(uint64_t key) const;

   private:
    size_t slot_of(uint64_t key) const;
    void grow();

    std::vector<Entry> entries_;
    size_t used_ = 0;
  };

  std::vector<Table> grams_;  // by length, from 0 (the empty context) to max_order
};

// Mean loss in nats per byte of the models of order 1 to max_order, trained on `train` and evaluated on all
// of `validation`; element n - 1 is order n. Throws Error(data) if either is empty.
std::vector<double> ngram_losses(std::span<const uint8_t> train, std::span<const uint8_t> validation,
                                 int max_order = NgramModel::kMaxOrder);

// Bytes of a text for these models.
inline std::span<const uint8_t> bytes_of(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

}  // namespace cleave::data
