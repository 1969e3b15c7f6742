#include "launcher/symbols.h"

#include <elf.h>
#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>

#include "launcher/children.h"
#include "launcher/shell_words.h"

namespace cleave::launcher {
namespace {

// addr2line takes addresses of the file, which for a program at a fixed address are those of the process.
bool is_at_fixed_address(const std::string& module) {
  Elf64_Ehdr header{};
  std::ifstream(module, std::ios::binary).read(reinterpret_cast<char*>(&header), sizeof(header));
  return header.e_type == ET_EXEC;
}

std::string name_of_file(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }

// Lines of addr2line for addresses of one module: two per address.
std::vector<std::string> lines_of(const std::string& module, const std::vector<CodeAddress>& addresses) {
  const bool fixed = is_at_fixed_address(module);
  std::string command = "addr2line -C -f -e " + shell_quoted(module);
  for (const CodeAddress& a : addresses) command += fmt::format(" {:#x}", fixed ? a.address : a.offset);
  std::vector<std::string> lines;
  const std::unique_ptr<FILE, int (*)(FILE*)> out(popen((command + " 2>/dev/null").c_str(), "re"), pclose);
  if (!out) return lines;
  std::string text;
  char buffer[4096];
  for (size_t n = 0; (n = fread(buffer, 1, sizeof(buffer), out.get())) > 0;) text.append(buffer, n);
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

}  // namespace

std::vector<std::string> symbols_of(const std::vector<CodeAddress>& addresses) {
  std::map<std::string, std::vector<size_t>> by_module;
  for (size_t i = 0; i < addresses.size(); ++i) by_module[addresses[i].module].push_back(i);
  std::vector<std::string> names(addresses.size());
  for (const auto& [module, indices] : by_module) {
    std::vector<CodeAddress> those;
    for (const size_t i : indices) those.push_back(addresses[i]);
    const auto lines = module.empty() ? std::vector<std::string>() : lines_of(module, those);
    for (size_t n = 0; n < indices.size(); ++n) {
      const CodeAddress& a = those[n];
      const std::string place = module.empty() ? fmt::format("{:#x}", a.address)
                                               : fmt::format("{}+{:#x}", name_of_file(module), a.offset);
      const bool named = lines.size() == 2 * indices.size() && lines[2 * n] != "??";
      const std::string line = named ? name_of_file(lines[2 * n + 1]) : "";
      names[indices[n]] = !named                  ? place
                          : line.starts_with('?') ? fmt::format("{} ({})", lines[2 * n], place)
                                                  : fmt::format("{} at {} ({})", lines[2 * n], line, place);
    }
  }
  return names;
}

}  // namespace cleave::launcher
