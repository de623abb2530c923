/* Two ranks send one buffer to and fro with MPI_Send and MPI_Recv. Rank 0 prints one line per size: the bytes, then
 * every round trip in nanoseconds. Arguments: the time budget per size in microseconds, then BYTES:ITERATIONS ... */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void round_trip(char *buffer, int bytes, int rank) {
    if (rank == 0) {
        MPI_Send(buffer, bytes, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
        MPI_Recv(buffer, bytes, MPI_BYTE, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        MPI_Recv(buffer, bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(buffer, bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
    }
}

static void measure(int bytes, long iterations, int64_t budget_ns, int rank) {
    char *buffer = malloc((size_t)bytes);
    int64_t *taken_ns = malloc((size_t)iterations * sizeof *taken_ns);
    if (!buffer || !taken_ns) MPI_Abort(MPI_COMM_WORLD, 1);
    memset(buffer, rank, (size_t)bytes);

    long warm_up = iterations / 10 + 2, done = 0;
    for (long i = 0; i < warm_up; i++) round_trip(buffer, bytes, rank);

    /* Rank 0 looks at the clock between batches and says how long the next one is. */
    long batch = iterations / 8 + 1;
    int64_t begun_ns = now_ns();
    for (;;) {
        long next = 0;
        if (rank == 0 && done < iterations && now_ns() - begun_ns < budget_ns)
            next = iterations - done < batch ? iterations - done : batch;
        MPI_Bcast(&next, 1, MPI_LONG, 0, MPI_COMM_WORLD);
        if (next == 0) break;
        round_trip(buffer, bytes, rank);
        for (long i = 0; i < next; i++) {
            int64_t before_ns = now_ns();
            round_trip(buffer, bytes, rank);
            taken_ns[done++] = now_ns() - before_ns;
        }
    }

    if (rank == 0) {
        printf("%d", bytes);
        for (long i = 0; i < done; i++) printf(" %lld", (long long)taken_ns[i]);
        printf("\n");
        fflush(stdout);
    }
    free(taken_ns);
    free(buffer);
}

int main(int count, char **values) {
    int rank;
    MPI_Init(&count, &values);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (count < 3) MPI_Abort(MPI_COMM_WORLD, 2);
    int64_t budget_ns = atoll(values[1]) * 1000;
    for (int i = 2; i < count; i++) {
        int bytes;
        long iterations;
        if (sscanf(values[i], "%d:%ld", &bytes, &iterations) != 2 || bytes < 1 || iterations < 1)
            MPI_Abort(MPI_COMM_WORLD, 2);
        measure(bytes, iterations, budget_ns, rank);
    }
    MPI_Finalize();
    return 0;
}
