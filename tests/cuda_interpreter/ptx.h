// The text of a PTX module ("Parallel Thread Execution ISA", NVIDIA), as nvcc writes it.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "tests/cuda_interpreter/kernel.h"

namespace interpreter {

// One instruction of the text, split into its parts.
struct Statement {
  std::string guard;  // without @ and !
  bool unless = false;
  std::string op;                       // "ld.global.v4.f32"
  std::vector<std::string_view> parts;  // of op, between the dots
  std::vector<std::string> operands;
  bool has(std::string_view part) const;
  std::string_view type() const { return parts.back(); }
};

class Module {
 public:
  explicit Module(std::string text);
  // Decodes a kernel at the first call; Defect for unsupported instructions.
  const Kernel& kernel(const std::string& name);
  bool has(const std::string& name) const { return entries_.count(name) > 0; }

 private:
  friend class Decoder;
  struct Variable {
    uint64_t address;
    bool shared;  // the block's dynamic memory
  };
  std::string text_;
  std::map<std::string, size_t> entries_;  // position of each name
  std::map<std::string, std::unique_ptr<Kernel>> kernels_;
  std::map<int, std::string> files_;
  std::map<std::string, Variable> variables_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
};

int bytes_of(std::string_view type);  // 0 for a predicate

// Allocates registers to the operands of one kernel.
class Decoder {
 public:
  Decoder(Module& module, Kernel& kernel) : module_(module), kernel_(kernel) {}
  void run(size_t at);

  // For the instruction families.
  uint32_t read(const std::string& operand, std::string_view type);  // a register, or one with that number
  uint32_t write(const std::string& operand);
  int width(const std::string& operand);  // bytes of a register; 0: a predicate, -1: neither
  bool is_register(const std::string& operand);
  std::vector<std::string> elements(const std::string& operand) const;  // of {a, b, ...}, or itself
  struct Address {
    uint32_t base;  // a register of 64 or 32 bits
    bool wide;
    int64_t offset;
  };
  Address address(const std::string& operand);
  int64_t number(const std::string& operand);
  uint32_t predicate(const std::string& operand, bool& negated);
  [[noreturn]] void unknown(const Statement& s, const char* what) const;
  Kernel& kernel() { return kernel_; }

 private:
  struct Register {
    uint32_t at;
    int width;
  };
  void declare(std::string_view type, std::string name);
  std::string location(std::string_view text) const;
  void directive(const std::string& text);
  void statement(const std::string& text, int line);
  Register* find(const std::string& name);
  uint32_t place(int width);
  uint32_t constant(uint64_t bits, int width);
  uint32_t parameter(uint32_t offset);  // a register with its address
  void parameters(size_t& at);

  Module& module_;
  Kernel& kernel_;
  std::vector<std::map<std::string, Register>> scopes_;
  std::map<std::pair<uint64_t, int>, uint32_t> numbers_;
  std::map<std::string, uint32_t> labels_, params_, shared_, local_;
  std::vector<std::pair<size_t, std::string>> jumps_;
  std::string source_;
};

// Each instruction family sets the function and its operands; returns false for instructions of
// other families.
bool decode_arithmetic(Decoder& d, const Statement& s, Instr& in);
bool decode_conversion(Decoder& d, const Statement& s, Instr& in);
bool decode_memory(Decoder& d, const Statement& s, Instr& in);
bool decode_warp(Decoder& d, const Statement& s, Instr& in);
bool decode_matrix(Decoder& d, const Statement& s, Instr& in);

}  // namespace interpreter
