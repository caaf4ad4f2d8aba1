// A GPU in miniature: the threads of one group run as fibers of one thread and meet at every lane exchange.
//
// A fiber runs until it exchanges a value with its 32 lanes or waits for them, then the next one runs. The values of an
// exchange go to one of two boards in turn, so a fast lane cannot overwrite what a slow one still has to read.
// Lanes that do not meet at the same exchanges are a bug that a GPU would hide: `launch` reports it.
#pragma once

#include <ucontext.h>
#ifdef __SSE__
#include <immintrin.h>
#endif

#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

namespace lanes {

constexpr uint32_t WIDTH = 32;
constexpr size_t STACK = 64 * 1024;

struct Position {
  uint32_t index, threads, lane, group, in_group, group_size;
};

struct Fiber {
  ucontext_t context;
  std::vector<char> stack;
  Position position;
  uint32_t exchanges;
  bool done;
};

struct Machine {
  ucontext_t scheduler;
  std::vector<Fiber> fibers;
  std::vector<uint32_t> board[2];
  Fiber* current = nullptr;
  const std::function<void()>* kernel = nullptr;
};

inline Machine machine;

inline const Position& here() {
  return machine.current->position;
}

inline void meet() {
  Fiber* self = machine.current;
  self->exchanges++;
  swapcontext(&self->context, &machine.scheduler);
}

// The value of another lane of the same SIMD group.
inline uint32_t exchange(uint32_t value, uint32_t lane) {
  const uint32_t slot = here().in_group;
  std::vector<uint32_t>& board = machine.board[machine.current->exchanges % 2];
  board[slot] = value;
  meet();
  return board[slot - slot % WIDTH + lane];
}

inline float exchange(float value, uint32_t lane) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  bits = exchange(bits, lane);
  std::memcpy(&value, &bits, 4);
  return value;
}

inline uint32_t least(uint32_t value) {
  for (uint32_t mask = 1; mask < WIDTH; mask *= 2) {
    const uint32_t other = exchange(value, here().lane ^ mask);
    value = other < value ? other : value;
  }
  return value;
}

inline void start() {
  (*machine.kernel)();
  machine.current->done = true;
  swapcontext(&machine.current->context, &machine.scheduler);
}

inline void prepare(Fiber& fiber, const Position& position) {
  fiber.stack.resize(STACK);
  fiber.position = position;
  fiber.exchanges = 0;
  fiber.done = false;
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.data();
  fiber.context.uc_stack.ss_size = STACK;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, start, 0);
}

// Whether the lanes of a group that is through met equally often.
inline bool level(uint32_t size) {
  for (uint32_t i = 0; i < size; ++i) {
    if (machine.fibers[i].exchanges != machine.fibers[i - i % WIDTH].exchanges) return false;
  }
  return true;
}

inline bool run_group(uint32_t size) {
  for (uint32_t left = size; left > 0;) {
    for (uint32_t i = 0; i < size; ++i) {
      Fiber& fiber = machine.fibers[i];
      if (fiber.done) continue;
      machine.current = &fiber;
      swapcontext(&machine.scheduler, &fiber.context);
      left -= fiber.done;
    }
  }
  return level(size);
}

// Makes float arithmetic treat subnormals as zeros, as some GPUs do, or as IEEE has it.
inline void flush_subnormals(bool on) {
#if defined(__SSE__)
  constexpr unsigned FLUSH_TO_ZERO_AND_DENORMALS_ARE_ZERO = 0x8040;
  _mm_setcsr(on ? _mm_getcsr() | FLUSH_TO_ZERO_AND_DENORMALS_ARE_ZERO
                : _mm_getcsr() & ~FLUSH_TO_ZERO_AND_DENORMALS_ARE_ZERO);
#elif defined(__aarch64__)
  uint64_t control;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  control = on ? control | 1u << 24 : control & ~(1ull << 24);
  asm volatile("msr fpcr, %0" : : "r"(control));
#else
#error "no way known to flush subnormals on this processor"
#endif
}

// Runs a kernel over a grid of whole groups; false if lanes of one SIMD group went different ways.
inline bool launch(uint32_t threads, uint32_t group_size, const std::function<void()>& kernel) {
  machine.kernel = &kernel;
  machine.fibers.resize(group_size);
  machine.board[0].assign(group_size, 0);
  machine.board[1].assign(group_size, 0);
  for (uint32_t group = 0; group * group_size < threads; ++group) {
    for (uint32_t i = 0; i < group_size; ++i) {
      prepare(machine.fibers[i], {group * group_size + i, threads, i % WIDTH, group, i, group_size});
    }
    if (!run_group(group_size)) return false;
  }
  return true;
}

}  // namespace lanes
