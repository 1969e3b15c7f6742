// Choice of the transport between GPUs from facts of the ranks.
#include "comm/gpu_transport.h"

#include <gtest/gtest.h>

#include "comm/nccl/nccl.h"
#include "tests/comm/collectives.h"

namespace cleave::comm {
namespace {

using test::error_of, test::has;

constexpr int64_t kOld = 22809, kNew = 23007;

GpuRoute route(std::vector<RankGpu> ranks, GpuTransport wanted = GpuTransport::automatic,
               const std::string& problem = "", const std::string& ipc = "") {
  return gpu_route(ranks, wanted, {problem, ipc});
}

TEST(GpuRoute, IsNcclIfEveryRankHasItAndASeparateGpu) {
  for (GpuTransport wanted : {GpuTransport::automatic, GpuTransport::nccl}) {
    const GpuRoute r = route({{11, kOld}, {13, kOld, 1}}, wanted);
    EXPECT_EQ(r.way, GpuTransport::nccl);
    EXPECT_FALSE(r.shared_gpus);
    EXPECT_TRUE(has(r.line, "NCCL 2.28.9")) << r.line;
    EXPECT_EQ(r.line.find('\n'), std::string::npos);
  }
}

TEST(GpuRoute, IsCudaIpcOnOneHostWithoutNcclAndStatesWhy) {
  const GpuRoute r = route({{11, kOld}, {13, 0}}, GpuTransport::automatic, "no such file");
  EXPECT_EQ(r.way, GpuTransport::ipc);
  EXPECT_TRUE(has(r.line, "CUDA IPC, sums in rank order") && has(r.line, "rank 1 has no NCCL: no such file"))
      << r.line;
  EXPECT_EQ(route({{11, kNew}, {13, kNew}}, GpuTransport::ipc).way, GpuTransport::ipc);
  EXPECT_TRUE(has(route({{11, kNew}, {13, kNew}}, GpuTransport::ipc).line, "asked for"));
}

TEST(GpuRoute, IsTheHostIfNeitherWorksAndStatesTheRankAndWhy) {
  const GpuRoute r = route({{11, kOld, 1}, {13, 0, 2}}, GpuTransport::automatic, "no such file");
  EXPECT_EQ(r.way, GpuTransport::host);
  EXPECT_TRUE(has(r.line, "rank 1 has no NCCL: no such file") && has(r.line, "rank order") &&
              has(r.line, "ranks 0 and 1 are on different hosts, or in containers without shared memory"))
      << r.line;
  const GpuRoute tried = route({{11, 0}, {13, 0}}, GpuTransport::automatic, "", "rank 1: no peer access");
  EXPECT_EQ(tried.way, GpuTransport::host);
  EXPECT_TRUE(has(tried.line, "no CUDA IPC: rank 1: no peer access")) << tried.line;
  EXPECT_EQ(route(std::vector<RankGpu>(65, {11, 0})).way, GpuTransport::host);
  EXPECT_EQ(route(std::vector<RankGpu>(64, {11, 0})).way, GpuTransport::ipc);
}

TEST(GpuRoute, RejectsARequestedTransportThatDoesNotWork) {
  const std::string nccl = error_of(
      [] {
        route({{11, kOld}, {13, 0}}, GpuTransport::nccl, "no such file");
      },
      Exit::usage);
  EXPECT_TRUE(has(nccl, "rank 1") && has(nccl, "--gpu_transport ipc or host")) << nccl;
  const std::string ipc = error_of(
      [] {
        route({{11, kNew, 1}, {13, kNew, 2}}, GpuTransport::ipc);
      },
      Exit::usage);
  EXPECT_TRUE(has(ipc, "different hosts") && has(ipc, "--gpu_transport nccl or host")) << ipc;
}

TEST(GpuRoute, LetsRanksShareAGpuOverNcclOnlyIfSupported) {
  EXPECT_EQ(route({{11, kOld}, {11, kOld}}).way, GpuTransport::ipc);
  EXPECT_TRUE(has(route({{11, kOld}, {11, kOld}}).line, "ranks 0 and 1 have the same GPU, which NCCL"));
  EXPECT_TRUE(route({{11, kNew}, {13, kNew}, {11, kNew}}).shared_gpus);
  EXPECT_EQ(route({{11, kNew}, {13, kNew}, {11, kNew}}).way, GpuTransport::nccl);
  EXPECT_EQ(route({{11, kOld, 0, false, 1}, {11, kOld, 0, false, 2}}).way, GpuTransport::nccl);
  EXPECT_EQ(route({{11, kOld, 0, false, 1}, {11, kOld, 0, false, 1}}).way, GpuTransport::ipc);
  const std::string refused = error_of(
      [] {
        route({{7, kOld}, {11, kOld}, {11, kOld}}, GpuTransport::nccl);
      },
      Exit::usage);
  EXPECT_TRUE(has(refused, "ranks 1 and 2") && has(refused, "2.30")) << refused;
}

TEST(GpuRoute, RegistersBuffersIfEveryRankAsksAndStatesWhyNot) {
  const auto asking = [](int64_t version, bool second) {
    return route({{11, version, 0, true}, {13, version, 0, second}});
  };
  EXPECT_TRUE(asking(kOld, true).registers);
  EXPECT_TRUE(has(asking(kOld, true).line, "NCCL 2.28.9, buffers registered;")) << asking(kOld, true).line;
  EXPECT_FALSE(asking(kOld, false).registers);
  EXPECT_TRUE(
      has(asking(kOld, false).line, "no buffers registered (CLEAVE_NCCL_REGISTER is not on at rank 1)"))
      << asking(kOld, false).line;
  const GpuRoute quiet = route({{11, kOld}, {13, kOld}});
  EXPECT_FALSE(quiet.registers || has(quiet.line, "register")) << quiet.line;
  EXPECT_FALSE(route({{11, kOld, 0, true}, {13, kOld, 0, true}}, GpuTransport::ipc).registers);
}

TEST(GpuRoute, RejectsMixedDevicesAndVersions) {
  const std::string mixed = error_of([] { route({{11, kOld}, {0, 0}}); }, Exit::usage);
  EXPECT_TRUE(has(mixed, "--device: rank 1 computes on the CPU and rank") && has(mixed, "rank 0 on a GPU"))
      << mixed;
  const std::vector<RankGpu> ranks = {{0, 0}, {11, kOld}};
  const GpuProblems problems{.nccl = "", .ipc = "", .cpu = "no NVIDIA driver found"};
  const std::string why = error_of([&] { gpu_route(ranks, GpuTransport::host, problems); }, Exit::usage);
  EXPECT_TRUE(has(why, "--device: rank 0 computes on the CPU (no NVIDIA driver found) and rank 1 on a GPU"))
      << why;
  EXPECT_EQ(route({{11, kOld}, {13, kNew}}).way, GpuTransport::ipc);
  EXPECT_EQ(route({{11, 22809}, {13, 22803}}).way, GpuTransport::nccl) << "a patch level does not matter";
}

TEST(GpuRoute, IsTheHostOnRequest) {
  const GpuRoute r = route({{11, kNew}, {13, kNew}}, GpuTransport::host);
  EXPECT_EQ(r.way, GpuTransport::host);
  EXPECT_TRUE(has(r.line, "asked for")) << r.line;
}

TEST(GpuRoute, IsNoneOnTheCpu) {
  EXPECT_EQ(route({{0, 0}, {0, 0}}).line, "");
  run_ranks(2, [](Communicator& world) {
    EXPECT_EQ(connect_gpus(world, {}, GpuTransport::automatic).line, "");
    EXPECT_EQ(world.bytes(), CommBytes{}) << "the choice was counted";
  });
  const auto alone = self_communicator();
  for (GpuTransport wanted : {GpuTransport::nccl, GpuTransport::ipc})
    error_of([&] { connect_gpus(*alone, {}, wanted); }, Exit::usage);
}

RankGpu owned(int64_t gpu, int64_t host = 0) {
  return {.gpu = gpu, .nccl = kNew, .host = host, .shares = false};
}

TEST(GpuRoute, RejectsASharedGpuWithoutConsent) {
  // As with a launcher that shows one GPU to each rank.
  EXPECT_EQ(route({owned(11), owned(13), owned(17), owned(19)}).way, GpuTransport::nccl);
  EXPECT_EQ(route({{.gpu = 11, .nccl = kNew}, {.gpu = 11, .nccl = kNew}}).way, GpuTransport::nccl);
  const std::string text = error_of(
      [] {
        route({owned(7, 1), owned(11, 2), owned(13, 2), owned(11, 2), owned(13, 2)});
      },
      Exit::usage);
  EXPECT_TRUE(has(text,
                  "ranks 1 and 3 have the same one (got 4 ranks on 2 GPUs of their host); start 2 there "
                  "(cleave launch -n 2)") &&
              has(text, "--share_gpu") && has(text, "CLEAVE_SHARE_GPU=1"))
      << text;
  EXPECT_EQ(text.find('\n'), std::string::npos);
}

TEST(GpuRoute, IsTheHostBetweenSlices) {
  const std::vector<RankGpu> ranks = {{.gpu = 11, .nccl = kNew}, {.gpu = 13, .nccl = kNew, .slice = true}};
  const GpuRoute r = route(ranks);
  EXPECT_EQ(r.way, GpuTransport::host);
  EXPECT_TRUE(has(r.line, "rank 1 has a part of a GPU (MIG), between which NCCL moves no data") &&
              has(r.line, "between which CUDA IPC moves no data"))
      << r.line;
  for (const GpuTransport wanted : {GpuTransport::nccl, GpuTransport::ipc})
    EXPECT_TRUE(has(error_of([&] { route(ranks, wanted); }, Exit::usage), "rank 1 has a part of a GPU"));
  EXPECT_EQ(route(ranks, GpuTransport::host).way, GpuTransport::host);
}

TEST(GpuTransport, HasFourNames) {
  EXPECT_EQ(parse_gpu_transport("auto"), GpuTransport::automatic);
  EXPECT_EQ(parse_gpu_transport("nccl"), GpuTransport::nccl);
  EXPECT_EQ(parse_gpu_transport("ipc"), GpuTransport::ipc);
  EXPECT_EQ(parse_gpu_transport("host"), GpuTransport::host);
  EXPECT_TRUE(has(error_of([] { parse_gpu_transport("mpi"); }, Exit::usage), "nccl"));
}

TEST(Nccl, HasEitherAProblemOrAVersion) {
  const NcclStatus status = nccl_status();
  EXPECT_NE(status.version == 0, status.problem.empty());
  EXPECT_EQ(library_version_text(22809), "2.28.9");
  EXPECT_EQ(status.problem.find('\n'), std::string::npos);
}

}  // namespace
}  // namespace cleave::comm
