#include "launcher/notice.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>

#include "core/error.h"

namespace cleave::launcher {
namespace {

std::string answer(const std::string& event) {
  return R"({"DocumentIncarnation": 1, "Events": [)" + event + "]}";
}

// The form of learn.microsoft.com/azure/virtual-machines/linux/scheduled-events.
std::string event(const std::string& type, const std::string& machine, const std::string& when) {
  return R"({"EventId": "C7061BAC-AFDC-4513-B24B-AA5F13A16123", "EventStatus": "Scheduled", "EventType": ")" +
         type + R"(", "ResourceType": "VirtualMachine", "Resources": [")" + machine +
         R"("], "NotBefore": ")" + when +
         R"(", "Description": "", "EventSource": "Platform", "DurationInSeconds": -1})";
}

TEST(Notices, AreEventsThatEndOrRestartThisMachine) {
  const std::string when = "Mon, 11 Apr 2022 22:26:58 GMT";
  EXPECT_EQ(event_in(answer(event("Preempt", "vm_3", when)), "vm_3"),
            "Azure will preempt this host at " + when);
  EXPECT_EQ(event_in(answer(event("Terminate", "vm_3", "")), "vm_3"), "Azure will delete this host now");
  EXPECT_EQ(event_in(answer(event("Freeze", "vm_3", when) + "," + event("Reboot", "vm_3", when)), "vm_3"),
            "Azure will restart this host at " + when);
  EXPECT_EQ(event_in(answer(event("Redeploy", "vm_4", when)), ""), "Azure will move this host at " + when);
  EXPECT_EQ(event_in(answer(event("Preempt", "vm_4", when)), "vm_3"), std::nullopt);
  EXPECT_EQ(event_in(answer(event("Freeze", "vm_3", when)), "vm_3"), std::nullopt);  // a pause of seconds
  EXPECT_EQ(event_in(answer(""), "vm_3"), std::nullopt);
}

TEST(Notices, AreNotInOtherAnswers) {
  for (const char* text : {"", "null", "[]", "<html>", R"({"Events": 7})", R"({"Events": [7, null, {}]})",
                           R"({"Events": [{"EventType": 7}]})",
                           R"({"Events": [{"EventType": "Preempt", "Resources": [[], 8]}]})"})
    EXPECT_EQ(event_in(text, "vm_3"), std::nullopt) << text;
  const std::string odd = answer(R"({"EventType": "Preempt", "NotBefore": "\u001b[31m"})");
  EXPECT_EQ(event_in(odd, "vm_3")->find('\x1b'), std::string::npos);
}

TEST(Notices, HaveSourcesInTheEnvironment) {
  EXPECT_EQ(notice_sources({{"CLEAVE_NOTICE_FILE", "/n"}, {"CLEAVE_SCHEDULED_EVENTS", "off"}}).file, "/n");
  EXPECT_FALSE(notice_sources({{"CLEAVE_SCHEDULED_EVENTS", "off"}}).any());
  EXPECT_EQ(notice_sources({{"CLEAVE_SCHEDULED_EVENTS", "http://h"}}).metadata, "http://h");
  try {
    notice_sources({{"CLEAVE_SCHEDULED_EVENTS", "on"}});
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.exit(), Exit::usage);
    EXPECT_EQ(std::string(e.what()),
              "CLEAVE_SCHEDULED_EVENTS: wrong value (got 'on', expected off or an address that begins with "
              "http://); "
              "change or unset it");
  }
}

TEST(Notices, OfAFileComeOnce) {
  std::string folder = (std::filesystem::temp_directory_path() / "cleave-notice-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string file = folder + "/leave";
  std::atomic<int> count{0};
  {
    NoticeWatch watch(
        {.file = file}, [&](const std::string& text) { count += text == "the file " + file + " exists"; },
        std::chrono::milliseconds(5));
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    EXPECT_EQ(count, 0);
    std::ofstream(file) << "";
    while (count == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
  }
  EXPECT_EQ(count, 1);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace cleave::launcher
