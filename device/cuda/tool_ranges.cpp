// Uses NVTX 3 ("NVIDIA Tools Extension Library"), a header-only library that looks for a tool at its first
// call.
#include "device/tool_ranges.h"

#include <fmt/format.h>
#include <nvtx3/nvToolsExt.h>

#include <string>

namespace cleave {
namespace {

nvtxDomainHandle_t domain() {
  static const nvtxDomainHandle_t ours = nvtxDomainCreateA("cleave");  // null if no tool is attached
  return ours;
}

}  // namespace

bool a_tool_listens() { return domain() != nullptr; }

void begin_tool_range(std::string_view category, std::string_view name) {
  const std::string text = fmt::format("{}: {}", category, name);
  nvtxEventAttributes_t event{};
  event.version = NVTX_VERSION, event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  event.messageType = NVTX_MESSAGE_TYPE_ASCII, event.message.ascii = text.c_str();
  nvtxDomainRangePushEx(domain(), &event);
}

void end_tool_range() { nvtxDomainRangePop(domain()); }

}  // namespace cleave
