#include "monitor/tensorboard.h"

#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "core/error.h"

namespace cleave::monitor {
namespace {

constexpr std::array<uint32_t, 256> crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit) c = c >> 1 ^ (c & 1 ? 0x82F63B78u : 0);
    table[i] = c;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kCrcTable = crc_table();

// Checksums are stored masked, so that a file that contains them can be checksummed itself.
uint32_t masked_crc(std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + 0xA282EAD8u; }

template <class T>
std::string raw(T value) {
  std::string out(sizeof value, '\0');
  std::memcpy(out.data(), &value, sizeof value);
  return out;
}

std::string framed(std::string_view data) {
  const std::string length = raw(uint64_t(data.size()));
  std::string out = length;
  out.append(raw(masked_crc(length))).append(data).append(raw(masked_crc(data)));
  return out;
}

std::string varint(uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out += char(value | 0x80);
  return out += char(value);
}

// Protobuf fields by wire type.
std::string as_varint(uint32_t field, uint64_t value) { return varint(field << 3 | 0) + varint(value); }
std::string as_double(uint32_t field, double value) { return varint(field << 3 | 1) + raw(value); }
std::string as_float(uint32_t field, float value) { return varint(field << 3 | 5) + raw(value); }
std::string as_bytes(uint32_t field, std::string_view value) {
  return (varint(field << 3 | 2) + varint(value.size())).append(value);
}

std::string version_event(double wall_time) { return as_double(1, wall_time) + as_bytes(3, "brain.Event:2"); }

std::string scalar_event(double wall_time, int64_t step, std::string_view tag, float value) {
  std::string event = as_double(1, wall_time);
  if (step != 0) event += as_varint(2, uint64_t(step));  // proto3 omits the default value 0
  return event + as_bytes(5, as_bytes(1, as_bytes(1, tag) + as_float(2, value)));
}

double system_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

TensorBoardOptions completed(TensorBoardOptions options) {
  if (!options.now) options.now = system_now;
  if (options.pid == 0) options.pid = ::getpid();
  if (options.host.empty()) {
    char name[256] = {};
    options.host = ::gethostname(name, sizeof name - 1) == 0 && name[0] ? name : "localhost";
  }
  return options;
}

std::string free_path(const std::string& folder, const TensorBoardOptions& options, double wall_time) {
  for (int n = 0;; ++n) {
    const auto path =
        std::filesystem::path(folder) /
        fmt::format("events.out.tfevents.{:010}.{}.{}.{}", int64_t(wall_time), options.host, options.pid, n);
    std::error_code none;
    if (!std::filesystem::exists(path, none)) return path.string();
  }
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (char c : bytes) crc = crc >> 8 ^ kCrcTable[(crc ^ uint8_t(c)) & 0xff];
  return ~crc;
}

TensorBoard::TensorBoard(const std::string& folder, TensorBoardOptions options)
    : options_(completed(std::move(options))),
      file_(free_path(folder, options_, options_.now()), OutputFile::Open::append) {
  file_.write(framed(version_event(options_.now())));
}

void TensorBoard::scalar(std::string_view tag, double value, int64_t step) {
  file_.write(framed(scalar_event(options_.now(), step, tag, float(value))));
}

}  // namespace cleave::monitor
