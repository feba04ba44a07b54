// What every backend keeps in front of the disk: reads that wait (demand before ahead, each first in
// first out) and results that wait for the consumer.
#pragma once

#include <atomic>
#include <cassert>
#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

#include "stream/backend.h"

namespace millrace::stream {

// First in, first out, in memory reserved once.
template <class T>
class Ring {
 public:
  explicit Ring(uint32_t capacity) : items_(capacity) {}
  bool empty() const { return count_ == 0; }
  void push(T item) {
    assert(count_ < items_.size());
    at(count_++) = std::move(item);
  }
  T pop() {
    T item = std::move(at(0));
    head_ = (head_ + 1) % items_.size();
    --count_;
    return item;
  }
  // Takes the first item that matches out of the middle; the order of the others stays.
  template <class Match>
  bool take(Match match, T* out) {
    for (size_t i = 0; i < count_; ++i) {
      if (!match(at(i))) continue;
      *out = std::move(at(i));
      for (; i + 1 < count_; ++i) at(i) = std::move(at(i + 1));
      --count_;
      return true;
    }
    return false;
  }

 private:
  T& at(size_t i) { return items_[(head_ + i) % items_.size()]; }
  std::vector<T> items_;
  size_t head_ = 0;
  size_t count_ = 0;
};

// The caller holds a lock.
class ReadQueue {
 public:
  explicit ReadQueue(uint32_t capacity) : demand_(capacity), ahead_(capacity), done_(capacity) {}

  bool waiting() const { return !demand_.empty() || !ahead_.empty(); }
  bool demanded() const { return !demand_.empty(); }
  void push(const ReadRequest& request) {
    (request.urgency == Urgency::kDemand ? demand_ : ahead_).push(request);
  }
  ReadRequest pop() { return demand_.empty() ? ahead_.pop() : demand_.pop(); }
  void promote(uint32_t piece) {
    ReadRequest request;
    if (!ahead_.take(of(piece), &request)) return;
    request.urgency = Urgency::kDemand;
    demand_.push(request);
  }
  bool cancel(uint32_t piece) {
    ReadRequest request;
    return ahead_.take(of(piece), &request) || demand_.take(of(piece), &request);
  }

  void finish(ReadResult result) { done_.push(std::move(result)); }
  bool finished() const { return !done_.empty(); }
  ReadResult reap() { return done_.pop(); }

 private:
  struct Of {
    uint32_t piece;
    bool operator()(const ReadRequest& request) const { return request.piece == piece; }
  };
  static Of of(uint32_t piece) { return {piece}; }
  Ring<ReadRequest> demand_;
  Ring<ReadRequest> ahead_;
  Ring<ReadResult> done_;
};

// The consumer's side of a backend that has one queue.
class QueuedBackend : public ReadBackend {
 public:
  explicit QueuedBackend(uint32_t capacity) : queue_(capacity) {}

  void promote(uint32_t piece) override {
    std::lock_guard lock(mutex_);
    queue_.promote(piece);
  }
  bool cancel(uint32_t piece) override {
    std::lock_guard lock(mutex_);
    return queue_.cancel(piece);
  }
  bool reap(ReadResult* result, bool wait) override {
    std::unique_lock lock(mutex_);
    if (wait) finished_.wait(lock, [&] { return queue_.finished(); });
    if (!queue_.finished()) return false;
    *result = queue_.reap();
    return true;
  }
  uint64_t bytes_read() const override { return bytes_.load(std::memory_order_relaxed); }
  uint64_t reads() const override { return reads_.load(std::memory_order_relaxed); }

 protected:
  void count_read(uint64_t bytes) {
    bytes_.fetch_add(bytes, std::memory_order_relaxed);
    reads_.fetch_add(1, std::memory_order_relaxed);
  }
  void finish(ReadResult result) {
    {
      std::lock_guard lock(mutex_);
      queue_.finish(std::move(result));
    }
    finished_.notify_one();
  }

  std::mutex mutex_;  // of queue_, and of what a backend keeps beside it
  ReadQueue queue_;

 private:
  std::condition_variable finished_;  // something to reap
  std::atomic<uint64_t> bytes_{0}, reads_{0};
};

}  // namespace millrace::stream
