// Matrices of tensor cores: loads of fragments, products of warps, and products of warpgroups,
// which run asynchronously until the warp waits for them. Each warp computes 16 of the 64 rows of a
// warpgroup's product.
#include <cstring>

#include "tests/cuda_interpreter/floats.h"
#include "tests/cuda_interpreter/ptx.h"
#include "tests/cuda_interpreter/warp.h"

namespace interpreter {
namespace {

constexpr int kRows = 16, kDeep = 16, kMostColumns = 256;

template <bool kBrain>
float number(uint16_t bits) {
  return kBrain ? from_bf16(bits) : from_fp16(bits);
}

// Returns true if all lanes are here; false: try again later.
bool whole(Warp& w, uint32_t mask) {
  if (!w.together(w.alive, mask)) return false;
  if (mask != ~0u) w.fail("not all lanes take part");
  return true;
}

// a: the addresses of rows; number: how many matrices of 8 x 8, plus 16 if transposed; list:
// results.
void load_matrices(Warp& w, const Instr& in, uint32_t mask) {
  if (!whole(w, mask)) return;
  const bool across = in.number & 16;
  for (int64_t k = 0; k < (in.number & 15); ++k) {
    uint16_t matrix[8][8];
    for (int row = 0; row < 8; ++row) {
      const int lane = int(k) * 8 + row;
      std::memcpy(matrix[row], w.block->shared.read(w, lane, w.at<uint32_t>(in.a)[lane], 16), 16);
    }
    uint32_t* d = w.at<uint32_t>(in.list[size_t(k)]);
    for (int lane = 0; lane < 32; ++lane) {
      const int row = lane / 4, column = lane % 4 * 2;
      d[lane] = across ? uint32_t(matrix[column + 1][row]) << 16 | matrix[column][row]
                       : uint32_t(matrix[row][column + 1]) << 16 | matrix[row][column];
    }
  }
}

// The 16 x 16 left operand, from four registers of each lane.
template <bool kBrain>
void gather_left(float (&left)[kRows][kDeep], const uint32_t* const (&regs)[4]) {
  for (int k = 0; k < 4; ++k)
    for (int lane = 0; lane < 32; ++lane) {
      const int row = lane / 4 + k % 2 * 8, column = lane % 4 * 2 + k / 2 * 8;
      left[row][column] = number<kBrain>(uint16_t(regs[k][lane]));
      left[row][column + 1] = number<kBrain>(uint16_t(regs[k][lane] >> 16));
    }
}

// sum += left right, over 16 terms each.
void multiply(float (&sum)[kRows][kMostColumns], const float (&left)[kRows][kDeep],
              const float (&right)[kDeep][kMostColumns], int columns) {
  for (int row = 0; row < kRows; ++row)
    for (int k = 0; k < kDeep; ++k) {
      const float x = left[row][k];
#pragma GCC ivdep
      for (int n = 0; n < columns; ++n) sum[row][n] += x * right[k][n];
    }
}

// Accumulators: tiles of 8 columns, with four elements per lane.
template <class F>
void each_element(int columns, F f) {
  for (int n = 0; n < columns / 8; ++n)
    for (int i = 0; i < 4; ++i)
      for (int lane = 0; lane < 32; ++lane)
        f(n * 4 + i, lane, lane / 4 + i / 2 * 8, n * 8 + lane % 4 * 2 + i % 2);
}

// list: 4 results, 4 registers of a, 2 of b, 4 of c.
template <bool kBrain>
void multiply_warp(Warp& w, const Instr& in, uint32_t mask) {
  if (!whole(w, mask)) return;
  float left[kRows][kDeep], right[kDeep][kMostColumns], sum[kRows][kMostColumns];
  const auto reg = [&](size_t i) { return w.at<uint32_t>(in.list[i]); };
  gather_left<kBrain>(left, {reg(4), reg(5), reg(6), reg(7)});
  for (size_t k = 0; k < 2; ++k)
    for (int lane = 0; lane < 32; ++lane) {
      const int row = lane % 4 * 2 + int(k) * 8;
      right[row][lane / 4] = number<kBrain>(uint16_t(reg(8 + k)[lane]));
      right[row + 1][lane / 4] = number<kBrain>(uint16_t(reg(8 + k)[lane] >> 16));
    }
  each_element(8, [&](int i, int lane, int row, int column) {
    sum[row][column] = w.at<float>(in.list[size_t(10 + i)])[lane];
  });
  multiply(sum, left, right, 8);
  each_element(8, [&](int i, int lane, int row, int column) {
    w.at<float>(in.list[size_t(i)])[lane] = sum[row][column];
  });
}

// A descriptor of a matrix in shared memory (PTX ISA, "Matrix Descriptor Format").
struct Descriptor {
  uint32_t begin, leading, stride, line, shift;  // line: bytes of a row that are permuted among themselves

  explicit Descriptor(uint64_t bits)
      : begin(uint32_t(bits & 0x3fff) << 4),
        leading(uint32_t(bits >> 16 & 0x3fff) << 4),
        stride(uint32_t(bits >> 32 & 0x3fff) << 4) {
    const uint32_t swizzle = uint32_t(bits >> 62);
    line = swizzle == 1 ? 128 : swizzle == 2 ? 64 : swizzle == 3 ? 32 : 16;
  }
  // Permutes the place of 8 elements in a row of the layout.
  uint32_t permuted(uint32_t at) const { return at ^ (at >> 3 & (line - 16)); }
  // Rows in memory are rows of the matrix: returns 8 elements from k on of `row`.
  uint32_t by_rows(uint32_t row, uint32_t k) const {
    const uint32_t within = line == 16 ? k / 8 * leading : k * 2;
    return permuted(begin + row / 8 * stride + row % 8 * line + within);
  }
  // Rows in memory are columns of the matrix: returns 8 elements from `row` on of column k.
  uint32_t across(uint32_t row, uint32_t k) const {
    const uint32_t per_line = line / 2;
    return permuted(begin + row / per_line * leading + k / 8 * stride + k % 8 * line + row % per_line * 2);
  }
};

// Reads `rows` rows of 16 elements each as numbers, by their second index: to[k][row].
template <bool kBrain, class To>
void gather_shared(Warp& w, uint64_t bits, uint32_t first, uint32_t rows, bool across, uint32_t begun,
                   To to) {
  const Descriptor d(bits);
  for (uint32_t major = 0; major < (across ? kDeep : rows); ++major)
    for (uint32_t minor = 0; minor < (across ? rows : kDeep); minor += 8) {
      const uint32_t row = first + (across ? minor : major), k = across ? major : minor;
      uint16_t values[8];
      std::memcpy(
          values,
          w.block->shared.read_by_product(w, across ? d.across(row, k) : d.by_rows(row, k), 16, begun), 16);
      for (uint32_t i = 0; i < 8; ++i)
        to(across ? minor + i : major, across ? major : minor + i) = number<kBrain>(values[i]);
    }
}

struct Form {  // fields in the number of a product's instruction
  int columns;
  bool brain, held, a_across, b_across;
  explicit Form(int64_t bits)
      : columns(int(bits & 511)),
        brain(bits >> 9 & 1),
        held(bits >> 10 & 1),
        a_across(bits >> 11 & 1),
        b_across(bits >> 12 & 1) {}
};

template <bool kBrain>
void finish(Warp& w, const Product& p) {
  const Form form(p.in->number);
  float left[kRows][kDeep], right[kDeep][kMostColumns], sum[kRows][kMostColumns];
  if (form.held) {
    const uint32_t* held = p.held.data();
    gather_left<kBrain>(left, {held, held + 32, held + 64, held + 96});
  } else {
    gather_shared<kBrain>(w, p.a, uint32_t(w.index % 4) * 16, 16, form.a_across, p.begun,
                          [&](uint32_t row, uint32_t k) -> float& { return left[row][k]; });
  }
  gather_shared<kBrain>(w, p.b, 0, uint32_t(form.columns), form.b_across, p.begun,
                        [&](uint32_t row, uint32_t k) -> float& { return right[k][row]; });
  each_element(form.columns, [&](int i, int lane, int row, int column) {
    sum[row][column] = p.add ? w.at<float>(p.in->list[size_t(i)])[lane] : 0;
  });
  multiply(sum, left, right, form.columns);
  each_element(form.columns, [&](int i, int lane, int row, int column) {
    w.at<float>(p.in->list[size_t(i)])[lane] = sum[row][column];
  });
}

// a, b: descriptors, or for a also registers after the accumulators in the list; c: true if it
// adds.
void begin_product(Warp& w, const Instr& in, uint32_t mask) {
  const Form form(in.number);
  if (!whole(w, mask)) return;
  const size_t results = size_t(form.columns) / 2;
  for (size_t i = 0; i < in.list.size(); ++i) {
    const uint32_t reg = in.list[i] / 64;
    const bool result = i < results;
    if (!result && w.held[reg] & 1) w.fail("a product reads accumulators of another product in flight");
    if (result && w.held[reg] & 2) w.fail("a product adds up in registers that another one in flight reads");
    if (w.written[reg] > w.fenced)
      w.fail("a product uses registers that were written without wgmma.fence since");
    w.held[reg] |= uint8_t(result ? 1 : 2);
  }
  Product p{&in, w.product_groups,        w.block->shared.tick(),
            0,   w.at<uint64_t>(in.b)[0], (*w.at<uint32_t>(in.c) & 1) != 0,
            {}};
  if (form.held)
    for (size_t i = 0; i < 4; ++i)
      p.held.insert(p.held.end(), w.at<uint32_t>(in.list[results + i]),
                    w.at<uint32_t>(in.list[results + i]) + 32);
  else
    p.a = w.at<uint64_t>(in.a)[0];
  w.products.push_back(std::move(p));
}

void fence_registers(Warp& w, const Instr&, uint32_t) { w.fenced = w.steps; }
void commit_products(Warp& w, const Instr&, uint32_t) { ++w.product_groups; }

// Executes the products that must be complete here; number: groups that may be incomplete.
void wait_for_products(Warp& w, const Instr& in, uint32_t) {
  size_t kept = 0;
  for (size_t i = 0; i < w.products.size(); ++i) {
    Product& p = w.products[i];
    if (w.product_groups - p.group <= in.number) {
      if (kept != i) w.products[kept] = std::move(p);
      ++kept;
    } else if (Form(p.in->number).brain) {
      finish<true>(w, p);
    } else {
      finish<false>(w, p);
    }
  }
  w.products.resize(kept);
  std::fill(w.held.begin(), w.held.end(), 0);
  for (const Product& p : w.products)
    for (size_t i = 0; i < p.in->list.size(); ++i)
      w.held[p.in->list[i] / 64] |= uint8_t(i < size_t(Form(p.in->number).columns) / 2 ? 1 : 2);
}

bool decode_warpgroup(Decoder& d, const Statement& s, Instr& in) {
  d.kernel().has_products = true;
  in.product = true;
  const auto& o = s.operands;
  if (s.has("fence")) return in.run = &fence_registers, true;
  if (s.has("commit_group")) return in.run = &commit_products, true;
  if (s.has("wait_group")) return in.run = &wait_for_products, in.number = d.number(o[0]), true;
  const std::string shape(s.parts[4]);
  const bool brain = s.type() == "bf16";
  if (!s.has("mma_async") || !shape.starts_with("m64n") || !shape.ends_with("k16") || s.parts[5] != "f32" ||
      (!brain && s.type() != "f16"))
    return false;
  const int columns = std::atoi(shape.c_str() + 4);
  for (const std::string& e : d.elements(o[0])) in.list.push_back(d.write(e));
  if (int(in.list.size()) != columns / 2 || columns > kMostColumns) return false;
  const bool held = o[1].starts_with("{");
  if (held)
    for (const std::string& e : d.elements(o[1])) in.list.push_back(d.read(e, "b32"));
  else
    in.a = d.read(o[1], "u64");
  in.b = d.read(o[2], "u64"), in.c = d.read(o[3], "pred");
  if (d.number(o[4]) != 1 || d.number(o[5]) != 1) return false;
  const bool a_across = !held && d.number(o[6]), b_across = d.number(o.back());
  in.number = columns | brain << 9 | held << 10 | a_across << 11 | b_across << 12;
  in.run = &begin_product;
  return true;
}

}  // namespace

bool decode_matrix(Decoder& d, const Statement& s, Instr& in) {
  const auto& o = s.operands;
  if (s.parts[0] == "wgmma") return decode_warpgroup(d, s, in);
  if (s.parts[0] == "ldmatrix") {
    const int count = s.has("x4") ? 4 : s.has("x2") ? 2 : 1;
    for (const std::string& e : d.elements(o[0])) in.list.push_back(d.write(e));
    const auto address = d.address(o[1]);
    in.a = address.base, in.number = count | (s.has("trans") ? 16 : 0), in.writes_list = true;
    in.run = &load_matrices;
    return s.has("m8n8") && s.has("shared") && s.type() == "b16" && address.offset == 0 && !address.wide;
  }
  if (s.op == "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" ||
      s.op == "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32") {
    for (const std::string& operand : o)
      for (const std::string& e : d.elements(operand)) in.list.push_back(d.read(e, "b32"));
    in.run = s.has("bf16") ? &multiply_warp<true> : &multiply_warp<false>;
    return in.list.size() == 14;
  }
  return false;
}

}  // namespace interpreter
