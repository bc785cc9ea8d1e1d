// What the driver's calls are given that is of more than one field, as cuda.h has it.
#pragma once
#include <cstddef>
#include <cstdint>

// CUDA_MEMCPY3D_PEER.
struct Side {
  size_t x, y, z, lod;
  unsigned kind;
  const void* host;
  uint64_t device;
  void* array;
  void* context;
  size_t pitch, height;
};
struct PeerCopy {
  Side from, to;
  size_t width, height, depth;
};

// CUlaunchAttribute and CUlaunchConfig.
struct LaunchAttribute {
  unsigned id;
  char pad[4];
  union {
    char bytes[64];
    int early;  // whether a kernel may begin before those before it in the stream have ended
  } value;
};
struct LaunchConfig {
  unsigned grid[3], threads[3], shared;
  void* stream;
  const LaunchAttribute* attributes;
  unsigned count;
};
