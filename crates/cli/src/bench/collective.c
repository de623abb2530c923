/* OpenMPI's all_reduce, as sheave's own is measured: f32 sum in place; from 64 KiB on every rank rewrites its tensor
   before each operation, outside the timer. Prints "BYTES NANOSECONDS…" of rank 0 for each argument BYTES:ITERATIONS. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int count, char **arguments) {
    int rank;
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int index = 1; index < count; index++) {
        size_t bytes, iterations;
        if (sscanf(arguments[index], "%zu:%zu", &bytes, &iterations) != 2) return 1;
        size_t elements = bytes / sizeof(float), warm = iterations / 10 + 1;
        float *tensor = malloc(bytes);
        double *times = malloc(iterations * sizeof(double));
        if (!tensor || !times) return 1;
        for (size_t round = 0; round < warm + iterations; round++) {
            if (bytes >= 65536 || round == 0)
                for (size_t at = 0; at < elements; at++) tensor[at] = 1.0f;
            if (bytes >= 65536) MPI_Barrier(MPI_COMM_WORLD);
            double begun = MPI_Wtime();
            MPI_Allreduce(MPI_IN_PLACE, tensor, (int)elements, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
            if (round >= warm) times[round - warm] = MPI_Wtime() - begun;
            if (bytes < 65536) for (size_t at = 0; at < elements; at++) tensor[at] = 1.0f;
        }
        if (rank == 0) {
            printf("%zu", bytes);
            for (size_t at = 0; at < iterations; at++) printf(" %.0f", times[at] * 1e9);
            printf("\n");
        }
        free(tensor);
        free(times);
    }
    MPI_Finalize();
    return 0;
}
