// Buffers of the host that a GPU reads and writes while the host goes on, for `src/host_buffer.rs`, by the rules of `shim.cc`.

#include <ATen/DeviceAccelerator.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <map>
#include <memory>
#include <mutex>

#include "guarded.h"

using terrashard::given;
using terrashard::guarded;

namespace {

// A moment of the device's current stream.
std::unique_ptr<c10::Event> now(const c10::Device& device) {
  auto event = std::make_unique<c10::Event>(device.type(), c10::EventFlag::PYTORCH_DEFAULT);
  event->record(at::accelerator::getCurrentStream(device.index()));
  return event;
}

// What has to happen before the host may touch the buffer: nothing where the host has copied itself.
c10::Event* until_now(const at::Tensor& device) {
  return device.is_cpu() ? nullptr : now(device.device()).release();
}

// The stream for copies beside what a device computes.
c10::Stream beside(const c10::Device& device) {
  static std::mutex mutex;
  static std::map<c10::DeviceIndex, c10::Stream> streams;
  std::lock_guard<std::mutex> lock(mutex);
  auto found = streams.find(device.index());
  if (found == streams.end()) {
    const c10::impl::VirtualGuardImpl guard(device.type());
    found = streams.emplace(device.index(), guard.getStreamFromGlobalPool(device)).first;
  }
  return found->second;
}

// The buffer's bytes as elements like those of `like`, as many.
at::Tensor elements(const at::Tensor& buffer, const at::Tensor& like) {
  TORCH_CHECK(buffer.numel() == like.numel() * static_cast<int64_t>(like.element_size()), "a buffer of ", buffer.numel(),
              " bytes does not hold ", like.numel(), " elements");
  return buffer.view(like.scalar_type());
}

}  // namespace

extern "C" {

// out: bytes, on pages that stay where they are if `pinned`.
int terrashard_host_buffer(char** message, int64_t bytes, bool pinned, at::Tensor** out) {
  return guarded(message, [&] {
    out[0] = given(at::empty({bytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(pinned)));
  });
}

// event: null, or what the caller waits for and frees.
int terrashard_copy_down(char** message, const at::Tensor* from, at::Tensor* buffer, c10::Event** event) {
  return guarded(message, [&] {
    elements(*buffer, *from).copy_(from->flatten(), true);
    *event = until_now(*from);
  });
}

int terrashard_copy_up(char** message, const at::Tensor* buffer, at::Tensor* to, c10::Event** event) {
  return guarded(message, [&] {
    to->copy_(elements(*buffer, *to).view_as(*to), true);
    *event = until_now(*to);
  });
}

// As above, beside what the device computes from now on; what it was told before may still use the memory of `to`.
int terrashard_copy_beside(char** message, const at::Tensor* buffer, at::Tensor* to, c10::Event** event) {
  return guarded(message, [&] {
    const auto from = elements(*buffer, *to).view_as(*to);
    if (to->is_cpu()) {
      to->copy_(from);
      return;
    }
    const auto before = now(to->device());
    const auto stream = beside(to->device());
    before->block(stream);
    const c10::StreamGuard guard(stream);
    to->copy_(from, true);
    *event = until_now(*to);
  });
}

// Has the current stream of the event's device wait for it.
int terrashard_follow(char** message, c10::Event* event) {
  return guarded(message, [&] { event->block(at::accelerator::getCurrentStream(event->device_index())); });
}

int terrashard_wait(char** message, c10::Event* event) {
  return guarded(message, [&] { event->synchronize(); });
}

void terrashard_free_event(c10::Event* event) { delete event; }

}  // extern "C"
