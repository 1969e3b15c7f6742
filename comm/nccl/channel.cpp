#include "comm/nccl/channel.h"

#include "device/cuda/check.h"

namespace cleave::comm {

NcclChannel::NcclChannel(Group& group, const Waiting& w, NcclLink::Member member, const ncclUniqueId& id)
    : device_(member.device), link_(group, w, member, id) {
  check(make_stream(&stream_, Stream::Turn::first), "cudaStreamCreate");
  for (cudaEvent_t* e : {&copied_, &sent_})
    check(cudaEventCreateWithFlags(e, cudaEventDisableTiming), "cudaEventCreate");
  const NcclLink::FirstCall message[] = {[sends = member.rank == 0](const NcclLibrary& nccl, ncclComm_t comm,
                                                                    float* in, float* out, cudaStream_t s) {
    return sends ? nccl.send(in, 1, ncclFloat32, 1, comm, s) : nccl.recv(out, 1, ncclFloat32, 0, comm, s);
  }};
  link_.make_first_calls(w, message);
}

NcclChannel::~NcclChannel() {
  link_.finish();
  link_.abort("it was closed");  // otherwise the stream could wait for a lost rank
  cudaStreamSynchronize(stream_);
  for (cudaEvent_t e : {copied_, sent_}) cudaEventDestroy(e);
  cudaStreamDestroy(stream_);
  for (void* p : buffers_) cudaFree(p);
}

void NcclChannel::send(const Waiting& w, const Tensor& t, CudaQueue& queue) {
  CHECK(t.bytes() <= room_, "{}: a message of {} bytes exceeds the channel's {} bytes", describe(w),
        t.bytes(), room_);
  check(cudaStreamWaitEvent(queue.use(), sent_, 0), "cudaStreamWaitEvent");
  check(cudaMemcpyAsync(buffers_.back(), t.raw(), size_t(t.bytes()), cudaMemcpyDeviceToDevice, queue.use()),
        "cudaMemcpyAsync");
  check(cudaEventRecord(copied_, queue.use()), "cudaEventRecord");
  check(cudaStreamWaitEvent(stream_, copied_, 0), "cudaStreamWaitEvent");
  link_.enqueue(w, stream_, [&](const NcclLibrary& nccl, ncclComm_t comm) {
    return nccl.send(buffers_.back(), size_t(t.bytes()), ncclUint8, 1, comm, stream_);
  });
  check(cudaEventRecord(sent_, stream_), "cudaEventRecord");
}

void NcclChannel::recv(const Waiting& w, const Tensor& t, CudaQueue& queue) {
  link_.enqueue(w, queue.use(), [&](const NcclLibrary& nccl, ncclComm_t comm) {
    return nccl.recv(t.raw(), size_t(t.bytes()), ncclUint8, 0, comm, queue.use());
  });
}

void NcclChannel::check(cudaError_t error, const char* call) const { cuda_check(error, call, device_); }

// Keeps smaller buffers, because cudaFree would wait for the whole GPU.
void NcclChannel::make_room(int64_t bytes) {
  if (bytes <= room_) return;
  buffers_.push_back(nullptr);
  check(cudaMalloc(&buffers_.back(), size_t(bytes)), "cudaMalloc of a pipeline's message");
  room_ = bytes;
}

}  // namespace cleave::comm
