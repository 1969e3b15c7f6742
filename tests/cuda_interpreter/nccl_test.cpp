// The NCCL replacement moves the correct data, and reports each rule that one of two ranks breaks.
// Ranks are threads with one GPU each.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cuda_interpreter/streams.h"

namespace interpreter {
namespace {

// Read before the first call of CUDA.
[[gnu::constructor]] void have_two_gpus() {
  setenv("CUDA_INTERPRETER_GPUS", "2", 1);
  setenv("CUDA_INTERPRETER_NCCL_CONNECTS", "1", 1);  // first calls of any size
}

template <class F>
F* function(F*, const char* name) {
  static void* const library = dlopen(NCCL_STANDIN, RTLD_NOW | RTLD_LOCAL);
  if (!library) throw std::runtime_error(dlerror());
  return reinterpret_cast<F*>(dlsym(library, name));
}
#define NCCL(name) function(&nccl##name, "nccl" #name)

constexpr size_t kCount = 1000;

// A rank: its GPU, a stream, memory for two times kCount floats of each rank, and a communicator.
struct Rank {
  int rank;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  float *in = nullptr, *out = nullptr;
  std::vector<float*> from_nccl;

  Rank(int which, const ncclUniqueId& id, int device, int blocking) : rank(which) {
    cudaSetDevice(device);
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    for (float** p : {&in, &out}) cudaMalloc(reinterpret_cast<void**>(p), bytes());
    std::vector<float> values(2 * kCount);
    for (size_t i = 0; i < values.size(); ++i) values[i] = value(rank, i);
    cudaMemcpy(in, values.data(), bytes(), cudaMemcpyDefault);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = blocking;
    made = NCCL(CommInitRankConfig)(&comm, 2, id, rank, &config);
  }
  ~Rank() {
    NCCL(CommAbort)(comm);
    cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
    cudaFree(in), cudaFree(out);
    for (float* p : from_nccl) NCCL(MemFree)(p);
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  // Registered memory of NCCL's allocator.
  float* lent() {
    void *p = nullptr, *handle = nullptr;
    EXPECT_EQ(NCCL(MemAlloc)(&p, bytes()), ncclSuccess);
    EXPECT_EQ(NCCL(CommRegister)(comm, p, bytes(), &handle), ncclSuccess);
    from_nccl.push_back(static_cast<float*>(p));
    return from_nccl.back();
  }
  static constexpr size_t bytes() { return 2 * kCount * sizeof(float); }
  static float value(int rank, size_t i) { return float(i) + 0.1f * float(rank + 1); }

  // Returns the final state of the communicator.
  ncclResult_t settle() {
    ncclResult_t state = ncclInProgress;
    for (int i = 0; i < 20'000 && state == ncclInProgress; ++i) {
      if (NCCL(CommGetAsyncError)(comm, &state) != ncclSuccess) return ncclSystemError;
      if (state == ncclInProgress) std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    return state;
  }
  std::vector<float> values(const float* from, size_t count) {
    std::vector<float> x(count);
    // A blocking copy would stop the other thread's calls while it waits for that thread's rank.
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    cudaMemcpyAsync(x.data(), from, count * sizeof(float), cudaMemcpyDefault, stream);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    return x;
  }
  ncclResult_t made;
};

void both(const std::function<void(Rank&)>& body, int second_gpu = 1, int blocking = 0) {
  ncclUniqueId id;
  ASSERT_EQ(NCCL(GetUniqueId)(&id), ncclSuccess);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r)
    threads.emplace_back([&, r] {
      Rank me(r, id, r == 0 ? 0 : second_gpu, blocking);
      body(me);
    });
  for (std::thread& t : threads) t.join();
}

TEST(Nccl, MovesAndSumsInTheOrderOfRanks) {
  both([](Rank& me) {
    ASSERT_EQ(me.settle(), ncclSuccess);
    const auto sum = [](size_t i) { return Rank::value(0, i) + Rank::value(1, i); };
    NCCL(AllReduce)(me.in, me.out, 2 * kCount, ncclFloat32, ncclSum, me.comm, me.stream);
    ASSERT_EQ(me.settle(), ncclSuccess);
    std::vector<float> got = me.values(me.out, 2 * kCount);
    for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], sum(i)) << i;

    NCCL(ReduceScatter)(me.in, me.out, kCount, ncclFloat32, ncclMax, me.comm, me.stream);
    ASSERT_EQ(me.settle(), ncclSuccess);
    got = me.values(me.out, kCount);
    for (size_t i = 0; i < got.size(); ++i)
      ASSERT_EQ(got[i], Rank::value(1, size_t(me.rank) * kCount + i)) << i;

    NCCL(AllGather)(me.in, me.out, kCount, ncclFloat32, me.comm, me.stream);
    ASSERT_EQ(me.settle(), ncclSuccess);
    got = me.values(me.out, 2 * kCount);
    for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], Rank::value(int(i / kCount), i % kCount)) << i;

    // Each rank sends the other its second half, and reduces the first to rank 1, which returns its
    // result.
    NCCL(GroupStart)();
    NCCL(Send)(me.in + kCount, kCount, ncclFloat32, 1 - me.rank, me.comm, me.stream);
    NCCL(Recv)(me.out, kCount, ncclFloat32, 1 - me.rank, me.comm, me.stream);
    NCCL(Reduce)(me.in, me.out + kCount, kCount, ncclFloat32, ncclSum, 1, me.comm, me.stream);
    NCCL(GroupEnd)();
    ASSERT_EQ(me.settle(), ncclSuccess);
    NCCL(Broadcast)(me.out + kCount, me.out + kCount, kCount, ncclFloat32, 1, me.comm, me.stream);
    ASSERT_EQ(me.settle(), ncclSuccess);
    got = me.values(me.out, 2 * kCount);
    for (size_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(got[i], Rank::value(1 - me.rank, kCount + i)) << i;
      ASSERT_EQ(got[kCount + i], sum(i)) << i;
    }
    NCCL(CommFinalize)(me.comm);
    ASSERT_EQ(me.settle(), ncclSuccess);
  });
}

TEST(Nccl, LeavesNothingInProgressIfItBlocks) {
  const auto blocks = [](Rank& me) {
    ASSERT_EQ(me.made, ncclSuccess);
    for (int i = 0; i < 50; ++i)
      ASSERT_EQ(NCCL(AllReduce)(me.in, me.out, kCount, ncclFloat32, ncclSum, me.comm, me.stream),
                ncclSuccess);
    EXPECT_EQ(NCCL(CommDestroy)(std::exchange(me.comm, nullptr)), ncclSuccess);
  };
  both(blocks, 1, 1);
}

TEST(Nccl, ConnectsRanksByCallsOfOneElement) {
  setenv("CUDA_INTERPRETER_NCCL_CONNECTS", "0", 1);
  both([](Rank& me) {
    ASSERT_EQ(me.settle(), ncclSuccess);
    for (const size_t count : {size_t{1}, kCount}) {
      NCCL(AllReduce)(me.in, me.out, count, ncclFloat32, ncclSum, me.comm, me.stream);
      ASSERT_EQ(me.settle(), ncclSuccess);
    }
    EXPECT_EQ(cudaStreamSynchronize(me.stream), cudaSuccess);
    NCCL(AllGather)(me.in, me.out, 2, ncclFloat32, me.comm, me.stream);
    EXPECT_NE(me.settle(), ncclSuccess);
    EXPECT_NE(std::string(NCCL(GetLastError)(me.comm)).find("AllGather of 2 elements connects ranks"),
              std::string::npos);
  });
  setenv("CUDA_INTERPRETER_NCCL_CONNECTS", "1", 1);
}

size_t free_memory() {
  size_t free = 0, total = 0;
  EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  return free;
}

TEST(Nccl, GivesMemoryInGranulesThatItsOwnCallTakesBack) {
  void *theirs = nullptr, *cudas = nullptr;
  const size_t before = free_memory();
  ASSERT_EQ(NCCL(MemAlloc)(&theirs, 100), ncclSuccess);
  EXPECT_EQ(before - free_memory(), size_t{2} << 20);
  ASSERT_EQ(cudaMalloc(&cudas, 100), cudaSuccess);
  cudaPointerAttributes attributes;
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, theirs), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
  EXPECT_EQ(cudaMemcpy(theirs, cudas, 100, cudaMemcpyDefault), cudaSuccess);

  EXPECT_EQ(cudaFree(theirs), cudaErrorInvalidValue);
  EXPECT_EQ(NCCL(MemFree)(cudas), ncclInvalidUsage);
  EXPECT_EQ(NCCL(MemFree)(static_cast<std::byte*>(theirs) + 8), ncclInvalidUsage);
  cudaIpcMemHandle_t handle;
  EXPECT_EQ(cudaIpcGetMemHandle(&handle, theirs), cudaErrorInvalidValue) << "it is not for CUDA IPC";
  EXPECT_EQ(cudaIpcGetMemHandle(&handle, cudas), cudaSuccess);
  cudaGetLastError();

  EXPECT_EQ(cudaFree(cudas), cudaSuccess);
  EXPECT_EQ(NCCL(MemFree)(theirs), ncclSuccess);
  EXPECT_EQ(NCCL(MemFree)(theirs), ncclInvalidUsage) << "twice";
  EXPECT_EQ(free_memory(), before);
  EXPECT_EQ(NCCL(MemAlloc)(&theirs, free_memory() + 1), ncclUnhandledCudaError);
}

// Reports an older library version to the program.
TEST(Nccl, HasTheVersionThatItIsTold) {
  int version = 0;
  for (const int told : {22500, NCCL_VERSION_CODE}) {
    setenv("CUDA_INTERPRETER_NCCL_VERSION", std::to_string(told).c_str(), 1);
    ASSERT_EQ(NCCL(GetVersion)(&version), ncclSuccess);
    EXPECT_EQ(version, told);
  }
  unsetenv("CUDA_INTERPRETER_NCCL_VERSION");
}

struct Rule {
  const char* name;
  const char* says;  // the report, on at least one rank
  std::function<void(Rank&)> broken;
  bool settled = true;
  int second_gpu = 1;
};

ncclResult_t all_reduce(Rank& me, size_t count, ncclDataType_t type = ncclFloat32, float* out = nullptr) {
  return NCCL(AllReduce)(me.in, out ? out : me.out, count, type, ncclSum, me.comm, me.stream);
}
ncclResult_t broadcast(Rank& me, int root) {
  return NCCL(Broadcast)(me.in, me.out, kCount, ncclFloat32, root, me.comm, me.stream);
}

const Rule kRules[] = {
    {"SameCount", "not the same call", [](Rank& me) { all_reduce(me, kCount + size_t(me.rank)); }},
    {"SameType", "not the same call",
     [](Rank& me) { all_reduce(me, kCount, me.rank ? ncclInt32 : ncclFloat32); }},
    {"SameOperation", "not the same call",
     [](Rank& me) { me.rank ? all_reduce(me, kCount) : broadcast(me, 0); }},
    {"SameReduction", "not the same call",
     [](Rank& me) {
       NCCL(AllReduce)
       (me.in, me.out, kCount, ncclFloat32, me.rank ? ncclMax : ncclSum, me.comm, me.stream);
     }},
    {"SameRoot", "not the same call", [](Rank& me) { broadcast(me, me.rank); }},
    {"SameOrder", "not the same call",
     [](Rank& me) {
       for (int i = 0; i < 2; ++i) i == me.rank ? all_reduce(me, kCount) : broadcast(me, 0), me.settle();
     }},
    {"MessagesHaveOneSize", "message 1 between ranks",
     [](Rank& me) {
       if (me.rank)
         NCCL(Recv)(me.out, kCount, ncclFloat32, 0, me.comm, me.stream);
       else
         NCCL(Send)(me.in, kCount - 1, ncclFloat32, 1, me.comm, me.stream);
     }},
    {"InPlaceOrApart", "overlap", [](Rank& me) { all_reduce(me, kCount, ncclFloat32, me.in + 1); }},
    {"PartsOfAGroupApart", "part 2 writes what its part 1 uses",
     [](Rank& me) {
       NCCL(GroupStart)();
       all_reduce(me, kCount);
       NCCL(Broadcast)(me.in, me.in, kCount, ncclFloat32, 0, me.comm, me.stream);
       NCCL(GroupEnd)();
     }},
    {"NotBeforeItIsReady", "before the communicator is ready", [](Rank& me) { all_reduce(me, kCount); },
     false},
    {"NotWhileACallIsInProgress", "while the call before is in progress",
     [](Rank& me) {
       for (int i = 0; i < 50 && all_reduce(me, kCount) != ncclInvalidUsage;) ++i;
     }},
    {"NotAfterAbort", "after ncclCommAbort",
     [](Rank& me) {
       NCCL(CommAbort)(me.comm);
       all_reduce(me, kCount);
     }},
    {"NotAfterFinalize", "after ncclCommFinalize",
     [](Rank& me) {
       NCCL(CommFinalize)(me.comm);
       all_reduce(me, kCount);
     }},
    {"StreamOfItsGpu", "the communicator is of GPU",
     [](Rank& me) {
       cudaStream_t own = me.stream;
       cudaSetDevice(1 - me.rank);
       cudaStreamCreateWithFlags(&me.stream, cudaStreamNonBlocking);
       all_reduce(me, kCount);
       std::swap(own, me.stream);
       cudaStreamDestroy(own);
     }},
    {"MemoryOfItsGpu", "the communicator on GPU",
     [](Rank& me) {
       float* other = nullptr;
       cudaSetDevice(1 - me.rank);
       cudaMalloc(reinterpret_cast<void**>(&other), Rank::bytes());
       all_reduce(me, kCount, ncclFloat32, other);
       cudaFree(other);
     }},
    {"NoMemoryOfTheHost", "not in a GPU's memory",
     [](Rank& me) {
       std::vector<float> host(kCount);
       all_reduce(me, kCount, ncclFloat32, host.data());
     }},
    {"WithinItsMemory", "not in a GPU's memory", [](Rank& me) { all_reduce(me, 2 * kCount + 1); }},
    {"RegisteredOnAllRanks", "registered on one rank only",
     [](Rank& me) {
       void* handle = nullptr;
       if (me.rank)
         for (float* p : {me.in, me.out}) NCCL(CommRegister)(me.comm, p, Rank::bytes(), &handle);
       all_reduce(me, kCount);
     }},
    {"RegisteredOfOneAllocator", "memory of two allocators",
     [](Rank& me) {
       void* handle = nullptr;
       me.lent();
       NCCL(CommRegister)(me.comm, me.in, Rank::bytes(), &handle);
     }},
    {"RegisteredOfOneAllocatorOnAllRanks", "are of two allocators",
     [](Rank& me) {
       void* handle = nullptr;
       if (me.rank)
         for (float** p : {&me.in, &me.out}) cudaFree(std::exchange(*p, nullptr)), *p = me.lent();
       else
         for (float* p : {me.in, me.out}) NCCL(CommRegister)(me.comm, p, Rank::bytes(), &handle);
       all_reduce(me, kCount);
       if (me.rank) me.in = me.out = nullptr;  // NCCL's memory
     }},
    {"RegisteredAtOnePlace", "do not begin at the same place",
     [](Rank& me) {
       float *in = me.lent(), *out = me.lent();
       NCCL(AllReduce)(in + me.rank, out, kCount, ncclFloat32, ncclSum, me.comm, me.stream);
     }},
    {"RegisteredOfItsGpu", "memory outside of its GPU",
     [](Rank& me) {
       void *other = nullptr, *handle = nullptr;
       cudaSetDevice(1 - me.rank);
       NCCL(MemAlloc)(&other, Rank::bytes());
       cudaSetDevice(me.rank);
       NCCL(CommRegister)(me.comm, other, Rank::bytes(), &handle);
       NCCL(MemFree)(other);
     }},
    {"FreedBehindDeregistration", "memory that is registered",
     [](Rank& me) {
       NCCL(MemFree)
       (me.lent());
     }},
    {"DeregisteredBeforeTheEnd", "buffers registered",
     [](Rank& me) {
       void* handle = nullptr;
       NCCL(CommRegister)(me.comm, me.in, Rank::bytes(), &handle);
       NCCL(CommFinalize)(me.comm);
     }},
    {"AGpuForEachRank", "have the same GPU", [](Rank&) {}, false, 0},
    {"GroupsEndOnce", "without ncclGroupStart",
     [](Rank&) {
       NCCL(GroupEnd)
       ();
     }},
};

class NcclRules : public testing::TestWithParam<Rule> {};
INSTANTIATE_TEST_SUITE_P(All, NcclRules, testing::ValuesIn(kRules),
                         [](const auto& rule) { return rule.param.name; });

TEST_P(NcclRules, AreNamedWhereOneIsBroken) {
  const Rule& rule = GetParam();
  std::string said[2];
  std::atomic<int> there{0};
  both(
      [&](Rank& me) {
        if (rule.settled) {
          ASSERT_EQ(me.settle(), ncclSuccess);
          ++there;
          while (there < 2) std::this_thread::yield();  // a communicator that broke a rule is no longer ready
        }
        rule.broken(me);
        me.settle();
        cudaStreamQuery(me.stream);
        // The difference is reported when both ranks have called and their GPUs reach the call.
        for (int i = 0; i < 200; ++i) {
          said[me.rank] = NCCL(GetLastError)(me.comm);
          if (said[me.rank].find(rule.says) != std::string::npos) break;
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
      },
      rule.second_gpu);
  EXPECT_TRUE(said[0].find(rule.says) != std::string::npos || said[1].find(rule.says) != std::string::npos)
      << "rank 0: " << said[0] << "\nrank 1: " << said[1];
}

}  // namespace
}  // namespace interpreter
