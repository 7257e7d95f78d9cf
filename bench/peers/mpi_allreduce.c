/* The peer of bench/allreduce.cpp: the same all-reduces through MPI. Lines: BYTES <tab> MICROSECONDS. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int repetitions(size_t bytes, int smoke) {
  if (smoke) return 3;
  return bytes <= 4096 ? 2000 : bytes <= (64 << 10) ? 500 : bytes <= (1 << 20) ? 50 : 4;
}

static void measure(size_t bytes, int rank, int smoke) {
  const int count = (int)(bytes / sizeof(float));
  const int times = repetitions(bytes, smoke);
  float* values = malloc(bytes);
  for (int i = 0; i < count; ++i) values[i] = 0;
  for (int i = 0; i < 2; ++i) MPI_Allreduce(MPI_IN_PLACE, values, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  for (int round = 0; round < (smoke ? 1 : 3); ++round) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    for (int i = 0; i < times; ++i)
      MPI_Allreduce(MPI_IN_PLACE, values, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    const double us = (MPI_Wtime() - start) * 1e6 / times;
    if (rank == 0) {
      printf("%zu\t%f\n", bytes, us);
      fflush(stdout);
    }
  }
  free(values);
}

int main(int argc, char** argv) {
  const int smoke = argc > 1 && strcmp(argv[1], "--smoke") == 0;
  const size_t sizes[] = {1 << 10, 64 << 10, 1 << 20, 25 << 20, 64 << 20};
  int rank = 0;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  for (size_t i = 0; i < (smoke ? 2 : 5); ++i) measure(sizes[i], rank, smoke);
  MPI_Finalize();
  return 0;
}
