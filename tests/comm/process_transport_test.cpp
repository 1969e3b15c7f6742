// The shm and Gloo transports between real processes, and what the survivors of a failure do.
#include <signal.h>

#include <atomic>
#include <filesystem>
#include <numeric>
#include <thread>

#include "comm/mesh.h"
#include "comm/rendezvous.h"
#include "tests/comm/collective_suite.h"
#include "tests/comm/processes.h"

namespace cleave {
namespace {

using namespace std::chrono_literals;
using test::Child;
using test::Ended;
using test::error_of;
using test::has;
using test::start_ranks;
using test::wait_all;

ConnectOptions over(TransportChoice transport, std::chrono::milliseconds timeout = 20s) {
  ConnectOptions options;
  options.transport = transport;
  options.comm.timeout = timeout;
  options.rendezvous_timeout = 20s;
  return options;
}

test::RunRanks processes(TransportChoice transport) {
  return [=](int size, const test::Body& body, const CommOptions&) {
    auto children = start_ranks(size, over(transport), [&](World& world) { body(world.communicator()); });
    for (const Ended& e : wait_all(children)) ASSERT_EQ(e.exit, 0) << e.message;
  };
}

const test::Transport kShm{"shm", processes(TransportChoice::shm), {2, 3, 5}, 300'000};
const test::Transport kGloo{"gloo", processes(TransportChoice::gloo), {2, 3}, 300'000};
const test::Transport* const kProcessTransports[] = {&kShm, &kGloo};
INSTANTIATE_TEST_SUITE_P(, Transports, testing::ValuesIn(kProcessTransports), test::name_of_transport);
INSTANTIATE_TEST_SUITE_P(, TransportsAndTypes,
                         testing::Combine(testing::ValuesIn(kProcessTransports),
                                          testing::ValuesIn(test::kTypes)),
                         test::name_of_transport_and_type);

}  // namespace
}  // namespace cleave
