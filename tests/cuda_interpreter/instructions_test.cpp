// Single instructions, compared with numbers from the definitions in the PTX ISA, and the text
// around them.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/cuda_interpreter/device_memory.h"
#include "tests/cuda_interpreter/ptx.h"
#include "tests/cuda_interpreter/warp.h"

namespace interpreter {
namespace {

// Runs a body on one warp, with %rd1 as the address of 64 bytes per lane.
std::vector<uint64_t> run(const std::string& registers, const std::string& body,
                          const std::vector<uint64_t>& in = {}) {
  constexpr size_t kWords = 8, kLanes = 32;
  const std::string text =
      ".version 9.0\n.target sm_90a\n.address_size 64\n\n.visible .entry body(\n\t.param .u64 "
      "body_param_0\n)\n{\n" +
      registers +
      "\t.reg .b64 %rd<4>;\n\t.reg .b32 %lane<2>;\n\tld.param.u64 %rd2, [body_param_0];\n\tmov.u32 %lane1, "
      "%tid.x;\n"
      "\tmul.wide.u32 %rd3, %lane1, 64;\n\tadd.s64 %rd1, %rd2, %rd3;\n" +
      body + "\tret;\n}\n";
  Module module(text);
  auto* memory = static_cast<uint64_t*>(device_memory().allocate(0, kWords * kLanes * 8));
  EXPECT_TRUE(device_memory().holds(memory, kWords * kLanes * 8));
  for (size_t lane = 0; lane < kLanes; ++lane)
    for (size_t i = 0; i < in.size(); ++i) memory[lane * kWords + i] = in[i];
  Launch launch{&module.kernel("body"), {}, {32, 1, 1}, 0, std::vector<std::byte>(8)};
  std::memcpy(launch.params.data(), &memory, 8);
  std::mt19937_64 random(1);
  execute(launch, random);
  const std::vector<uint64_t> out(memory, memory + kWords * kLanes);
  device_memory().free(memory);
  return out;
}

// Returns the result of an instruction "op d, a, b, c" with these types of operands and result.
uint64_t result(const std::string& op, const std::string& d,
                const std::vector<std::pair<std::string, uint64_t>>& operands) {
  const auto bits = [](const std::string& type) { return type.substr(type.find_first_of("0123456789")); };
  std::string registers = "\t.reg .b" + bits(d) + " %d<2>;\n", body, list = "%d1";
  std::vector<uint64_t> in;
  for (const auto& [type, value] : operands) {
    const std::string name = "%x" + std::to_string(in.size()), place = std::to_string(in.size() * 8);
    registers += "\t.reg .b" + bits(type) + " " + name + ";\n";
    body += "\tld.global.b" + bits(type) + " " + name + ", [%rd1+" + place + "];\n";
    list += ", " + name, in.push_back(value);
  }
  body += "\t" + op + " " + list + ";\n\tst.global.b" + bits(d) + " [%rd1+56], %d1;\n";
  const std::vector<uint64_t> out = run(registers, body, in);
  const size_t width = size_t(std::stoi(bits(d)));
  for (size_t lane = 0; lane < 32; ++lane) EXPECT_EQ(out[lane * 8 + 7], out[7]) << op << " in lane " << lane;
  return width == 64 ? out[7] : out[7] & ((uint64_t{1} << width) - 1);
}

uint64_t f(float x) { return std::bit_cast<uint32_t>(x); }
uint64_t f(double x) { return std::bit_cast<uint64_t>(x); }
uint64_t s32(int x) { return uint32_t(x); }

TEST(Instructions, OfIntegersFollowTheirDefinitions) {
  struct Row {
    const char *op, *d, *type;
    uint64_t a, b, want;
  };
  const uint64_t big = uint64_t{1} << 63;
  for (const Row& r :
       std::initializer_list<Row>{{"add.s32", "s32", "s32", s32(-9), 7, s32(-2)},
                                  {"add.s32", "s32", "s32", 0x7fffffff, 1, 0x80000000},
                                  {"sub.s64", "s64", "s64", 3, 5, ~uint64_t{1}},
                                  {"mul.lo.s32", "s32", "s32", 70000, 70000, 70000ull * 70000 & 0xffffffff},
                                  {"mul.hi.s32", "s32", "s32", s32(-1), 2, s32(-1)},
                                  {"mul.hi.u64", "u64", "u64", big, 6, 3},
                                  {"mul.wide.s32", "s64", "s32", s32(-70000), 70000, uint64_t(-4900000000)},
                                  {"mul.wide.u32", "u64", "u32", 0xffffffff, 2, 0x1fffffffe},
                                  {"div.s32", "s32", "s32", s32(-7), 2, s32(-3)},
                                  {"rem.s32", "s32", "s32", s32(-7), 2, s32(-1)},
                                  {"div.u64", "u64", "u64", big, 3, big / 3},
                                  {"min.s32", "s32", "s32", s32(-1), 1, s32(-1)},
                                  {"min.u32", "u32", "u32", s32(-1), 1, 1},
                                  {"max.s64", "s64", "s64", ~uint64_t{0}, 0, 0},
                                  {"and.b32", "b32", "b32", 0xff00ff00, 0x0ff00ff0, 0x0f000f00},
                                  {"xor.b64", "b64", "b64", big | 5, big | 3, 6},
                                  {"shl.b32", "b32", "b32", 3, 31, 0x80000000},
                                  {"shl.b32", "b32", "b32", 3, 32, 0},
                                  {"shr.s32", "s32", "s32", 0x80000000, 40, 0xffffffff},
                                  {"shr.u32", "u32", "u32", 0x80000000, 31, 1},
                                  {"bmsk.clamp.b32", "b32", "b32", 4, 3, 0x70},
                                  {"add.s16", "s16", "s16", 0x7fff, 1, 0x8000}}) {
    EXPECT_EQ(result(r.op, r.d, {{r.type, r.a}, {r.type, r.b}}), r.want) << r.op;
  }
  EXPECT_EQ(result("mad.lo.s32", "s32", {{"s32", 5}, {"s32", s32(-6)}, {"s32", 7}}), s32(-23));
  EXPECT_EQ(result("shr.u64", "u64", {{"u64", big}, {"u32", 63}}), 1u);
  EXPECT_EQ(result("popc.b32", "u32", {{"b32", 0xf0f1}}), 9u);
  EXPECT_EQ(result("clz.b32", "u32", {{"b32", 0x00ffffff}}), 8u);
  EXPECT_EQ(result("not.b32", "b32", {{"b32", 0x0000ffff}}), 0xffff0000u);
  EXPECT_EQ(result("neg.s64", "s64", {{"s64", 4}}), uint64_t(-4));
  EXPECT_EQ(result("abs.s64", "s64", {{"s64", uint64_t(-4)}}), 4u);
  EXPECT_EQ(result("bfi.b64", "b64", {{"b64", 0xab}, {"b64", ~uint64_t{0}}, {"b32", 8}, {"b32", 8}}),
            0xffffffffffffabffu);
  EXPECT_EQ(result("bfe.s32", "s32", {{"s32", 0xf00}, {"u32", 8}, {"u32", 4}}), s32(-1));
  EXPECT_EQ(result("bfe.u32", "u32", {{"u32", 0xf00}, {"u32", 8}, {"u32", 4}}), 15u);
  EXPECT_EQ(result("prmt.b32", "b32", {{"b32", 0x33221100}, {"b32", 0x77665544}, {"b32", 0x7610}}),
            0x77661100u);
  EXPECT_EQ(result("shf.l.wrap.b32", "b32", {{"b32", 0x80000001}, {"b32", 1}, {"b32", 4}}), 0x18u);
}

TEST(Instructions, OfFloatsRoundAsTheySay) {
  const float third = 1.0f / 3, inf = INFINITY, tiny = 0x1p-130f;
  EXPECT_EQ(result("fma.rn.f32", "f32", {{"f32", f(third)}, {"f32", f(3.0f)}, {"f32", f(-1.0f)}}),
            f(0x1p-25f));
  // 1 + 2^-30 is between two floats.
  EXPECT_EQ(result("fma.rm.f32", "f32", {{"f32", f(0x1p-15f)}, {"f32", f(0x1p-15f)}, {"f32", f(1.0f)}}),
            f(1.0f));
  EXPECT_EQ(result("fma.rp.f32", "f32", {{"f32", f(0x1p-15f)}, {"f32", f(0x1p-15f)}, {"f32", f(1.0f)}}),
            f(std::nextafter(1.0f, 2.0f)));
  EXPECT_EQ(result("fma.rz.f32", "f32", {{"f32", f(0x1p-15f)}, {"f32", f(-0x1p-15f)}, {"f32", f(1.0f)}}),
            f(std::nextafter(1.0f, 0.0f)));
  EXPECT_EQ(result("div.rn.f32", "f32", {{"f32", f(1.0f)}, {"f32", f(3.0f)}}), f(third));
  EXPECT_EQ(result("sqrt.rn.f32", "f32", {{"f32", f(2.0f)}}), f(1.41421356f));
  EXPECT_EQ(result("max.f32", "f32", {{"f32", f(float(NAN))}, {"f32", f(-2.0f)}}), f(-2.0f));
  EXPECT_EQ(result("min.f32", "f32", {{"f32", f(0.0f)}, {"f32", f(-0.0f)}}), f(-0.0f));
  EXPECT_EQ(result("copysign.f32", "f32", {{"f32", f(-1.0f)}, {"f32", f(5.0f)}}), f(-5.0f));
  EXPECT_EQ(result("mul.ftz.f32", "f32", {{"f32", f(tiny)}, {"f32", f(0x1p20f)}}), f(0.0f));
  EXPECT_EQ(result("mul.f32", "f32", {{"f32", f(tiny)}, {"f32", f(0x1p20f)}}), f(0x1p-110f));
  EXPECT_EQ(result("ex2.approx.ftz.f32", "f32", {{"f32", f(-130.0f)}}), f(0.0f));
  EXPECT_EQ(result("ex2.approx.ftz.f32", "f32", {{"f32", f(-inf)}}), f(0.0f));
  EXPECT_EQ(result("ex2.approx.f32", "f32", {{"f32", f(3.0f)}}), f(8.0f));
  EXPECT_EQ(result("rcp.approx.ftz.f64", "f64", {{"f64", f(4.0)}}), f(0.25));
  EXPECT_EQ(result("fma.rn.f64", "f64", {{"f64", f(1 + 0x1p-30)}, {"f64", f(1 - 0x1p-30)}, {"f64", f(-1.0)}}),
            f(-0x1p-60));
}

TEST(Instructions, OfConversionRoundAndSaturate) {
  const auto convert = [](const char* how, const char* d, const char* s, uint64_t x) {
    return result(std::string("cvt") + how + "." + d + "." + s, d, {{s, x}});
  };
  EXPECT_EQ(convert(".rn", "f16", "f32", f(1 + 0x1p-11f)), 0x3c00u);  // a tie, to even
  EXPECT_EQ(convert(".rn", "f16", "f32", f(1 + 3 * 0x1p-11f)), 0x3c02u);
  EXPECT_EQ(convert(".rn", "f16", "f32", f(65520.0f)), 0x7c00u);
  EXPECT_EQ(convert(".rn", "f16", "f32", f(float(NAN))), 0x7fffu);
  EXPECT_EQ(convert(".rn", "bf16", "f32", f(1 + 0x1p-8f)), 0x3f80u);
  EXPECT_EQ(convert(".rn", "bf16", "f32", f(1 + 3 * 0x1p-8f)), 0x3f82u);
  EXPECT_EQ(convert(".rn", "bf16", "f32", f(float(NAN))), 0x7fffu);
  EXPECT_EQ(convert("", "f32", "bf16", 0xc000), f(-2.0f));
  EXPECT_EQ(convert("", "f32", "f16", 0x0001), f(0x1p-24f));
  EXPECT_EQ(convert(".rn", "f32", "u32", 0xffffffff), f(0x1p32f));
  EXPECT_EQ(convert(".rn", "f32", "s64", uint64_t(-3)), f(-3.0f));
  EXPECT_EQ(convert(".rzi", "s32", "f32", f(-2.9f)), s32(-2));
  EXPECT_EQ(convert(".rni", "s64", "f64", f(2.5)), 2u);
  EXPECT_EQ(convert(".rzi", "s32", "f32", f(1e20f)), 0x7fffffffu);
  EXPECT_EQ(convert(".rzi", "u32", "f32", f(-5.0f)), 0u);
  EXPECT_EQ(convert(".rzi", "s32", "f32", f(float(NAN))), 0u);
  EXPECT_EQ(convert(".rzi", "f32", "f32", f(-2.9f)), f(-2.0f));
  EXPECT_EQ(convert(".sat", "f32", "f32", f(1.5f)), f(1.0f));
  EXPECT_EQ(convert(".sat", "f32", "f32", f(float(NAN))), f(0.0f));
  EXPECT_EQ(convert("", "s64", "s32", s32(-3)), uint64_t(-3));
  EXPECT_EQ(convert("", "u64", "u32", s32(-3)), 0xfffffffdu);
  EXPECT_EQ(convert("", "u32", "u64", 0x123456789), 0x23456789u);
  EXPECT_EQ(convert("", "s32", "s8", 0xf0), 0xfffffff0u);
  EXPECT_EQ(convert(".rn", "f32", "f64", f(1 + 0x1p-24)), f(1.0f));
  EXPECT_EQ(result("cvt.rn.satfinite.e4m3x2.f32", "b16", {{"f32", f(448.0f)}, {"f32", f(-1.0f)}}), 0x7eb8u);
  EXPECT_EQ(result("cvt.rn.satfinite.e4m3x2.f32", "b16", {{"f32", f(1e9f)}, {"f32", f(0x1p-10f)}}), 0x7e00u)
      << "the largest number; a tie between 0 and the smallest, to even";
  EXPECT_EQ(result("cvt.rn.satfinite.e5m2x2.f32", "b16", {{"f32", f(NAN)}, {"f32", f(0x1.8p-16f)}}), 0x7f02u);
  EXPECT_EQ(result("cvt.rn.bf16x2.f32", "b32", {{"f32", f(2.0f)}, {"f32", f(1.0f)}}), 0x40003f80u);
}

// Bits of a comparison, which also depend on the third operand.
TEST(Instructions, OfComparisonKnowNumbersThatAreNone) {
  const auto compare = [](const char* how, uint64_t a, uint64_t b) {
    const auto out =
        run("\t.reg .pred %p<2>;\n\t.reg .f32 %f<3>;\n\t.reg .b32 %r<2>;\n",
            "\tld.global.f32 %f1, [%rd1];\n\tld.global.f32 %f2, [%rd1+8];\n\tsetp." + std::string(how) +
                ".f32 %p1, %f1, %f2;\n\tselp.b32 %r1, 1, 0, %p1;\n\tst.global.u32 [%rd1+16], %r1;\n",
            {a, b});
    return uint32_t(out[2]) == 1;
  };
  const uint64_t one = f(1.0f), two = f(2.0f), none = f(float(NAN));
  EXPECT_TRUE(compare("lt", one, two) && !compare("lt", two, one) && !compare("lt", one, none));
  EXPECT_TRUE(compare("ltu", one, none) && !compare("ltu", two, one));
  EXPECT_TRUE(!compare("ne", one, none) && compare("neu", one, none) && compare("ne", one, two));
  EXPECT_TRUE(!compare("eq", none, none) && compare("equ", none, none) && compare("eq", one, one));
  EXPECT_TRUE(compare("nan", one, none) && !compare("num", one, none) && compare("geu", none, one));
}

// Lanes take different branches in a loop and meet again before they shuffle.
TEST(Warps, MeetBehindAWayThatSomeLanesTake) {
  const auto out = run("\t.reg .pred %p<3>;\n\t.reg .b32 %r<6>;\n",
                       "\tmov.u32 %r1, 0;\n\tmov.u32 %r2, %lane1;\n"
                       "$L_loop:\n\tsetp.eq.s32 %p1, %r2, 0;\n\t@%p1 bra $L_out;\n\tadd.s32 %r1, %r1, "
                       "%r2;\n\tadd.s32 %r2, %r2, -1;\n"
                       "\tbra.uni $L_loop;\n$L_out:\n\tshfl.sync.bfly.b32 %r3|%p2, %r1, 1, 31, "
                       "-1;\n\tst.global.u32 [%rd1], %r3;\n"
                       "\tshfl.sync.up.b32 %r4|%p2, %r1, 1, 0, -1;\n\tselp.b32 %r4, %r4, 12345, "
                       "%p2;\n\tst.global.u32 [%rd1+8], %r4;\n"
                       "\tsetp.gt.s32 %p1, %lane1, 4;\n\tvote.sync.ballot.b32 %r5, %p1, -1;\n\tst.global.u32 "
                       "[%rd1+16], %r5;\n");
  const auto sum = [](size_t lane) { return uint32_t(lane * (lane + 1) / 2); };
  for (size_t lane = 0; lane < 32; ++lane) {
    EXPECT_EQ(uint32_t(out[lane * 8]), sum(lane ^ 1)) << lane;
    EXPECT_EQ(uint32_t(out[lane * 8 + 1]), lane ? sum(lane - 1) : 12345u) << lane;
    EXPECT_EQ(uint32_t(out[lane * 8 + 2]), 0xffffffe0u) << lane;
  }
}

TEST(Modules, NameAnInstructionThatTheInterpreterLacks) {
  try {
    run("\t.reg .b32 %r<3>;\n", "\tdp4a.s32.s32 %r1, %r2, %r2, %r2;\n");
    FAIL() << "it was taken";
  } catch (const Defect& e) {
    EXPECT_NE(std::string(e.what()).find("dp4a.s32.s32 %r1 %r2 %r2 %r2"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace interpreter
